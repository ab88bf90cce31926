"""Which room and which boxes a command works on, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import RunEach
from tests.cli.shop import URL, write_module

WRONG: dict[tuple[str, ...], str] = {
    ("run", "shop"): "'shop' names no room: it should look like shop:room",
    ("run", "shop.py:room"): "'shop.py:room' names a file: write shop:room",
    ("run", "nowhere:room"): "there is no module 'nowhere', here or installed",
    ("run", "shop.inner:room"): "there is no module 'shop.inner', here or installed",
    ("run", "shop:nothing"): "there is no 'nothing' in the module 'shop'",
    ("run", "shop:number"): "shop:number is a builtins.int, not a postroom.Postroom",
    ("run", "plain:room"): "plain:room is a postroom.sync.Postroom, not a postroom.Postroom",
    ("run", "shop:empty"): "shop:empty has no handlers: there is nothing to run",
    ("status", "nowhere:room"): "there is no module 'nowhere'",
    ("status", "shop:room", "--inbox", "nothing"): "the room has no inbox 'nothing'; it has inbox 'orders', outbox",
    ("dead", "list", "--room", "shop:room", "--outbox", "orders"): "the room has no outbox 'orders'",
    ("run", "shop:room"): "this database has no postroom_* tables",
    ("status", "--url", URL): "this database has no postroom_* tables",
    ("purge", "--url", URL): "this database has no postroom_* tables",
    ("bench", "--url", URL): "this database has no postroom_* tables",
    ("dead", "list", "--url", URL, "--inbox", "inbox"): "this database has no postroom_* tables",
    ("dead", "replay", "--url", URL, "--inbox", "inbox", "--all"): "this database has no postroom_* tables",
    ("status",): "no database: pass a URL",
}


def test_what_is_wrong_is_said_in_one_line(run_each: RunEach, tmp_path: Path) -> None:
    write_module(tmp_path)
    write_module(tmp_path, "from postroom.sync import Postroom\n\nroom = Postroom('memory://')\n", "plain")
    for (arguments, said), ran in zip(WRONG.items(), run_each(*WRONG), strict=True):
        assert (ran.returncode, ran.stdout) == (1, ""), (arguments, ran.stderr)
        assert ran.stderr.startswith(f"postroom: {said}"), (arguments, ran.stderr)
        assert ran.stderr.count("\n") == 1, arguments


def test_what_is_wrong_in_the_module_is_traced(run_each: RunEach, tmp_path: Path) -> None:
    write_module(tmp_path, "import not_installed\n", "imports")
    write_module(tmp_path, "open('missing.txt')\n", "opens")
    imports, opens = run_each(("run", "imports:room"), ("status", "opens:room"))
    for ran, name, error in ((imports, "imports", "No module named 'not_installed'"), (opens, "opens", "[Errno 2]")):
        *trace, last = ran.stderr.splitlines()
        assert ran.returncode == 1
        assert any(f'{name}.py", line 1' in line for line in trace)
        assert last.startswith(f"postroom: the module {name!r} could not be imported: {error}")
