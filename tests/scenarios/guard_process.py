"""A process that begins an execution and then waits for its end: by a kill, or after a pause."""

from __future__ import annotations

import sys

from postroom.sync import Postroom


def main(url: str, mode: str) -> None:
    with Postroom(url) as room:
        guard = room.guard("billing", mode=mode, lease_seconds=1, lease_renewal=False)  # type: ignore[arg-type]

        @guard.once("key", handler="charge")
        def charge(key: str, **_tx: object) -> None:
            print("running", flush=True)  # noqa: T201
            sys.stdin.readline()

        try:
            charge("1")
        except Exception as error:  # noqa: BLE001 - the test reads its name
            print(type(error).__name__, flush=True)  # noqa: T201
        else:
            print("processed", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
