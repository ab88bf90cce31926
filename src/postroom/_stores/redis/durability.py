"""Checks, before the first script, whether a server keeps what it accepts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from redis import exceptions

from postroom._kernel.program import Program, call
from postroom._stores.redis.redis_py import Client, Reply
from postroom.errors import FeatureMissing

_log = logging.getLogger("postroom")

EVERYWHERE = {"target_nodes": "primaries"}
"""The arguments that send a command to all nodes of a cluster."""
ADVICE = "see `maxmemory-policy`, `appendonly` and `save` in the server's configuration"


class Durability:
    """Logs a warning for a server that may lose messages. With `required`, raises FeatureMissing instead."""

    def __init__(self, name: str, *, required: bool = False) -> None:
        self._name = name
        self._required = required
        self._warned = False

    def check(self, client: Client, everywhere: Mapping[str, str]) -> Program[tuple[int, ...]]:
        """Checks all servers and returns the version of the oldest one.

        `everywhere`: `EVERYWHERE` for a cluster; empty for one server.
        """
        version = yield from oldest_version(client, everywhere)
        risks: list[str] = []
        for settings in (yield from self._settings(client, everywhere)):
            risks += [risk for risk in _risks(settings) if risk not in risks]
        if risks and self._required:
            raise FeatureMissing(f"{self._name} does not keep what it is given: {'; '.join(risks)} ({ADVICE})")
        if risks and not self._warned:
            self._warned = True
            _log.warning("%s may lose messages: %s (%s)", self._name, "; ".join(risks), ADVICE)
        return version

    def _settings(self, client: Client, everywhere: Mapping[str, str]) -> Program[list[Mapping[str, str | None]]]:
        """Returns the settings of each server. None: the server does not say."""
        try:
            found = []
            for pattern in ("maxmemory-policy", "appendonly", "save"):
                found.append(_each((yield call(client.config_get, pattern, **everywhere)), everywhere))
            return [{**one, **two, **three} for one, two, three in zip(*found, strict=True)]
        except exceptions.ResponseError:
            # Managed servers have no CONFIG. INFO has a part of it.
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


def oldest_version(client: Client, everywhere: Mapping[str, str]) -> Program[tuple[int, ...]]:
    """Returns the version of the oldest server. `everywhere`: see `Durability.check`."""
    info = _each((yield call(client.info, "server", **everywhere)), everywhere)
    return min(_version(str(each["redis_version"])) for each in info)


def _each(reply: Reply, everywhere: Mapping[str, str]) -> list[Reply]:
    """Returns one reply per server."""
    return list(reply.values()) if everywhere else [reply]


def _risks(settings: Mapping[str, str | None]) -> list[str]:
    risks = []
    policy = settings.get("maxmemory-policy")
    if policy is None:
        risks.append("it does not report whether it evicts keys when memory is short")
    elif policy != "noeviction":
        risks.append(f"it evicts keys when memory is short (maxmemory-policy is {policy}, not noeviction)")
    log, snapshots = settings.get("appendonly"), settings.get("save")
    if log != "yes":
        if snapshots is None:
            risks.append("it does not report whether it writes snapshots to the disk")
        elif snapshots:
            risks.append("it writes snapshots only (appendonly is no): what came after the last is lost with it")
        else:
            risks.append("it writes nothing to the disk (neither appendonly nor save is set)")
    return risks


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
