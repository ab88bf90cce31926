"""The contenders on a server. Each is one module, loaded only in the process that runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.common.subject import Subject

RAW, POSTROOM, POSTROOM_LISTS = "raw", "postroom", "postroom, lists"
OURS = {POSTROOM: "benchmarks.common.ours:Ours", POSTROOM_LISTS: "benchmarks.common.ours:OursInLists"}


@dataclass(frozen=True)
class Contenders:
    package: str
    """Where this is found, under the name CONTENDERS."""
    classes: Mapping[str, str]
    """Module and class, by name: for a worker to import."""
    peers: Mapping[str, str]
    """Which of them are other libraries, with a module that exists if the library is installed."""
    rival: str
    """The peer in the ratios of the tables."""
    apart: Mapping[str, Path] = field(default_factory=dict)
    """The interpreters of peers whose requirements contradict those of others."""

    def find(self, name: str) -> type[Subject]:
        module, _, attribute = self.classes[name].partition(":")
        found: type[Subject] = getattr(import_module(module), attribute)
        return found

    def python(self, name: str) -> str:
        return str(self.apart.get(name, sys.executable))

    def present(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those whose packages are installed."""
        return tuple(name for name in names if self._is_present(name))

    def _is_present(self, name: str) -> bool:
        if name in self.apart:
            return self.apart[name].exists()
        return name not in self.peers or find_spec(self.peers[name]) is not None


def find_contenders(package: str) -> Contenders:
    found: Contenders = import_module(package).CONTENDERS
    return found
