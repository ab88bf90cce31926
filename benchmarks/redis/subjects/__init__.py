"""The contenders on Redis."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common.contenders import OURS, RAW, Contenders

SAQ, ARQ, DRAMATIQ, TASKIQ, TASKIQ_LISTS, STREAQ = "saq", "arq", "dramatiq", "taskiq", "taskiq, lists", "streaq"

UNSAFE = (TASKIQ_LISTS,)
"""They take a message out of Redis before it is handled: a worker that is killed has lost it. Shown, but no aim."""

APART = {SAQ: "saq", ARQ: "arq", TASKIQ: "taskiq", TASKIQ_LISTS: "taskiq"}
"""Separate environments below that of the benchmark: each needs another redis-py."""


def _python(peer: str) -> Path:
    return Path(__file__).parents[3] / ".venv-bench" / peer / "bin" / "python"


CONTENDERS = Contenders(
    package=__name__,
    classes={
        RAW: f"{__name__}.raw:Raw",
        **OURS,
        SAQ: f"{__name__}.saq_peer:Saq",
        ARQ: f"{__name__}.arq_peer:Arq",
        DRAMATIQ: f"{__name__}.dramatiq_peer:Dramatiq",
        TASKIQ: f"{__name__}.taskiq_peer:TaskiqStream",
        TASKIQ_LISTS: f"{__name__}.taskiq_peer:TaskiqList",
        STREAQ: f"{__name__}.streaq_peer:Streaq",
    },
    peers={
        SAQ: "saq",
        ARQ: "arq",
        DRAMATIQ: "dramatiq",
        TASKIQ: "taskiq_redis",
        TASKIQ_LISTS: "taskiq_redis",
        STREAQ: "streaq",
    },
    rival=DRAMATIQ,
    apart={name: _python(database) for name, database in APART.items()},
)
