"""Which room and which boxes a command works on, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import RunEach
from tests.cli.shop import URL, write_module

WRONG: dict[tuple[str, ...], str] = {
    ("run", "shop"): "'shop' names no room: it should look like shop:room",
    ("run", "shop.py:room"): "'shop.py:room' names a file: write shop:room",
    ("run", "inner/shop.py:room"): "'inner/shop.py:room' names a file: write inner.shop:room",
    (
        "run",
        "../shop.py:room",
    ): "'../shop.py:room' names a file: run this in the folder of shop.py, and write shop:room",
    ("run", "../shop:room"): "'../shop' is not the name of a module: write a dotted name such as shop or app.shop",
    ("dead", "list", "--room", "/srv/shop:room", "--inbox", "orders"): "'/srv/shop' is not the name of a module",
    ("status", ".shop:room"): "'.shop' is not the name of a module",
    ("status", "shop.:room"): "'shop.' is not the name of a module",
    ("run", "nowhere:room"): "there is no module 'nowhere', here or installed",
    ("run", "shop.inner:room"): "there is no module 'shop.inner', here or installed",
    ("run", "shop:nothing"): "there is no 'nothing' in the module 'shop'",
    ("run", "shop:room.nothing"): "there is no 'room.nothing' in the module 'shop'",
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


BROKEN = {
    "imports": ("import not_installed\n", "ModuleNotFoundError: No module named 'not_installed'"),
    "opens": ("open('missing.txt')\n", "FileNotFoundError: [Errno 2]"),
    "connects": (
        "import postroom\nroom = postroom.Postroom('shop.db')\n",
        "postroom.errors.ArgumentValueError: this is",
    ),
    "outer": ("import imports\n", "ModuleNotFoundError: No module named 'not_installed'"),
    "chains": ("try:\n    import imports\nexcept ImportError:\n    raise ValueError from None\n", "ValueError"),
    "lazy": ("def __getattr__(name):\n    raise ValueError('no ' + name)\n", "ValueError: no room"),
}
"""Modules that cannot be imported: what is in them, and the error."""


def test_an_error_in_the_module_is_traced_without_other_frames(run_each: RunEach, tmp_path: Path) -> None:
    for name, (text, _) in BROKEN.items():
        write_module(tmp_path, text, name)
    all_ran = run_each(*(("run", f"{name}:room") for name in BROKEN))
    for (name, (_, error)), ran in zip(BROKEN.items(), all_ran, strict=True):
        first, *trace, last = ran.stderr.splitlines()
        assert (ran.returncode, ran.stdout) == (1, ""), name
        assert first == "Traceback (most recent call last):"
        assert f'{name}.py", line ' in trace[0]
        frames = [line for line in trace if line.startswith("  File ")]
        assert [line for line in frames if str(tmp_path) not in line] == []
        assert len(frames) == (2 if name == "outer" else 1)
        assert any(line.startswith(error) for line in trace)
        assert last.startswith(f"postroom: the module {name!r} could not be imported: ") or name == "lazy"
        assert error.rpartition("errors.")[2] in last


def test_a_module_that_python_cannot_read_is_shown_in_its_place(run_each: RunEach, tmp_path: Path) -> None:
    write_module(tmp_path, "room = (\n", "unclosed")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "other.py").write_bytes(b"name = '\xff'\n")
    unclosed, folder, other = run_each(("run", "unclosed:room"), ("run", "folder:room"), ("run", "other:room"))
    where, *_, last = unclosed.stderr.splitlines()
    assert where == f'  File "{tmp_path / "unclosed.py"}", line 1'
    assert last == (
        "postroom: the module 'unclosed' could not be imported: SyntaxError: '(' was never closed (unclosed.py, line 1)"
    )
    assert folder.stderr == "postroom: there is no module 'folder', here or installed\n"
    for ran in (unclosed, other):
        assert ran.returncode == 1
        assert "Traceback" not in ran.stderr
        assert "importlib" not in ran.stderr


def test_a_module_that_ends_the_process_is_said_to(run_each: RunEach, tmp_path: Path) -> None:
    write_module(tmp_path, "import sys\n\nsys.exit()\n", "script")
    [ran] = run_each(("run", "script:room"))
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("postroom: the module 'script' could not be imported: SystemExit")
