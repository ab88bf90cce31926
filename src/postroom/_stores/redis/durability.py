"""Whether a server keeps what it is given: asked once, before the first script."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from redis import exceptions

from postroom._kernel.program import Program, call
from postroom.errors import FeatureMissing

_log = logging.getLogger("postroom")

HOW = "see `maxmemory-policy`, `appendonly` and `save` in the server's configuration"


class Durability:
    """Warns of a server that may forget; with `required`, refuses it."""

    def __init__(self, name: str, *, required: bool = False) -> None:
        self._name = name
        self._required = required
        self._warned = False

    def check(self, client: Any, everywhere: Mapping[str, Any]) -> Program[tuple[int, ...]]:
        """Answers the version of the (oldest) server."""
        info = _each((yield call(client.info, "server", **everywhere)), everywhere)
        complaints: list[str] = []
        for settings in (yield from self._settings(client, everywhere)):
            complaints += [complaint for complaint in _complaints(settings) if complaint not in complaints]
        if complaints and self._required:
            raise FeatureMissing(f"{self._name} does not keep what it is given: {'; '.join(complaints)} ({HOW})")
        if complaints and not self._warned:
            self._warned = True
            _log.warning("%s may lose messages: %s (%s)", self._name, "; ".join(complaints), HOW)
        return min(_version(str(each["redis_version"])) for each in info)

    def _settings(self, client: Any, everywhere: Mapping[str, Any]) -> Program[list[Mapping[str, str | None]]]:
        """Of each server; what cannot be found out is None."""
        try:
            found = []
            for pattern in ("maxmemory-policy", "appendonly", "save"):
                found.append(_each((yield call(client.config_get, pattern, **everywhere)), everywhere))
            return [{**one, **two, **three} for one, two, three in zip(*found, strict=True)]
        except exceptions.ResponseError:
            # Managed servers do not let themselves be asked. INFO tells some of it.
            memory = _each((yield call(client.info, "memory", **everywhere)), everywhere)
            persistence = _each((yield call(client.info, "persistence", **everywhere)), everywhere)
        return [
            {
                "maxmemory-policy": one.get("maxmemory_policy"),
                "appendonly": "yes" if other.get("aof_enabled") else None,
                "save": None,
            }
            for one, other in zip(memory, persistence, strict=True)
        ]


def _each(answer: Any, everywhere: Mapping[str, Any]) -> list[Any]:
    """The answers of all servers that were asked."""
    return list(answer.values()) if everywhere else [answer]


def _complaints(settings: Mapping[str, str | None]) -> list[str]:
    complaints = []
    policy = settings.get("maxmemory-policy")
    if policy is None:
        complaints.append("it does not tell whether it evicts keys when memory is short")
    elif policy != "noeviction":
        complaints.append(f"it evicts keys when memory is short (maxmemory-policy is {policy}, not noeviction)")
    log, snapshots = settings.get("appendonly"), settings.get("save")
    if log != "yes":
        if snapshots is None:
            complaints.append("it does not tell whether it writes snapshots to the disk")
        elif snapshots:
            complaints.append("it writes snapshots only (appendonly is no): what came after the last is lost with it")
        else:
            complaints.append("it writes nothing to the disk (neither appendonly nor save is set)")
    return complaints


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
