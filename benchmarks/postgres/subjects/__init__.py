"""The contenders on PostgreSQL."""

from __future__ import annotations

from benchmarks.common.contenders import OURS, RAW, Contenders

PGQUEUER, PROCRASTINATE, SAQ, AWA = "pgqueuer", "procrastinate", "saq", "awa"

CONTENDERS = Contenders(
    package=__name__,
    classes={
        RAW: f"{__name__}.raw:Raw",
        **OURS,
        PGQUEUER: f"{__name__}.pgqueuer_peer:Pgqueuer",
        PROCRASTINATE: f"{__name__}.procrastinate_peer:Procrastinate",
        SAQ: f"{__name__}.saq_peer:Saq",
        AWA: f"{__name__}.awa_peer:Awa",
    },
    peers={PGQUEUER: "pgqueuer", PROCRASTINATE: "procrastinate", SAQ: "saq", AWA: "awa"},
    rival=PGQUEUER,
)
