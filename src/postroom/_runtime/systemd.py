"""The notification protocol of systemd: a service reports its state to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

_log = logging.getLogger("postroom")

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


class Notifier:
    """Sends states to systemd. A state that cannot be sent is logged: the service works without it."""

    def __init__(self, address: str, watchdog_seconds: float | None = None) -> None:
        # A name that begins with @ is in the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        """systemd kills the service if it receives no WATCHDOG=1 for so long. None: no watchdog is set."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier | None:
        """Returns None if systemd does not expect notifications."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
            return None
        return cls(address, _watchdog_seconds(environment))

    def send(self, state: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # the event loop must not wait for systemd
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            _log.warning("systemd could not be notified of %s: %s", state, type(error).__name__)


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Returns None unless WATCHDOG_PID is this process: a child inherits the variables, but is not watched."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    process = environment.get("WATCHDOG_PID") or str(os.getpid())
    if not microseconds.isdecimal() or not int(microseconds) or process != str(os.getpid()):
        return None
    return int(microseconds) / 1_000_000
