"""A process to be killed: it runs a scenario's program up to a statement, and holds its transaction open there.

python -m tests.crash.holder FILE SCENARIO KIND STATEMENTS
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from postroom._stores.sql.statements import Step
from tests.crash.scenarios import BY_NAME
from tests.crash.stepping import SteppingStore


def main(file: str, name: str, kind: Any, statements: str) -> None:
    scenario = BY_NAME[name]
    given, clock = scenario.set_up(Path(file), kind)

    def hold(done: int, _step: Step | None) -> None:
        if done == int(statements):
            sys.stdout.write("holding\n")
            sys.stdout.flush()
            sys.stdin.read()  # until it is killed, or the parent is gone

    store = SteppingStore(Path(file), clock)
    store.stepping.hook = hold
    scenario.act(store, scenario.box(kind), given, {})


if __name__ == "__main__":
    main(*sys.argv[1:])
