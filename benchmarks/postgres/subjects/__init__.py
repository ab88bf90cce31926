"""Who is measured: one module each, loaded only in the process that runs it."""

from __future__ import annotations

from importlib import import_module

from benchmarks.postgres.subjects.base import Subject

RAW, POSTROOM, POSTROOM_LISTS = "raw", "postroom", "postroom, lists"
PGQUEUER, PROCRASTINATE, SAQ, AWA = "pgqueuer", "procrastinate", "saq", "awa"
PEERS = (PGQUEUER, PROCRASTINATE, SAQ, AWA)

_CLASSES = {
    RAW: "raw:Raw",
    POSTROOM: "ours:Ours",
    POSTROOM_LISTS: "ours:OursInLists",
    PGQUEUER: "pgqueuer_peer:Pgqueuer",
    PROCRASTINATE: "procrastinate_peer:Procrastinate",
    SAQ: "saq_peer:Saq",
    AWA: "awa_peer:Awa",
}


def find(name: str) -> type[Subject]:
    module, _, attribute = _CLASSES[name].partition(":")
    found: type[Subject] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
