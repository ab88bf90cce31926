"""Documentation that runs: every program in README.md and docs/ works as written, and prints what the page shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from postroom import sync
from tests.docs.pages import MARK, PAGES, ROOT, Program, programs_in
from tests.docs.servers import empty_redis
from tests.postgres import create_database

PROGRAMS = [program for page in PAGES for program in programs_in(page, page.read_text("utf-8"))]

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "POSTROOM_URL"}
# The commands that a page runs are those of this environment; and what they print comes when it is printed.
ENVIRONMENT |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


def run(program: Program, folder: Path) -> list[str]:
    """What each block printed."""
    text = program.text_on(
        postgres=create_database() if program.uses_postgres else None,
        redis=empty_redis() if program.uses_redis else None,
    )
    (folder / "program.py").write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{program.name} does not run:\n{done.stderr}", pytrace=False)
    return done.stdout.split(MARK)[:-1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_snippet_runs_and_prints_what_the_page_shows(program: Program, tmp_path: Path) -> None:
    printed = run(program, tmp_path)
    for block, output in zip(program.blocks, printed, strict=True):
        assert output == block.output, f"{program.page.name}, line {block.line}"


def test_the_readme_and_the_tutorial_have_programs() -> None:
    assert {"README.md", "first-steps.md"} <= {program.page.name for program in PROGRAMS}


@pytest.mark.parametrize(
    "program", [program for program in PROGRAMS if program.page.name == "README.md"], ids=lambda program: program.name
)
def test_a_program_of_the_readme_runs_again(program: Program, tmp_path: Path) -> None:
    run(program, tmp_path)
    run(program, tmp_path)


@pytest.mark.parametrize(
    ("page", "block", "module", "inbox", "printed"),
    [
        ("README.md", 0, "first", "inbox", "booked 7\n"),
        ("docs/tutorial/first-steps.md", 4, "shop", "payments", "mail about evt_9\n"),
    ],
    ids=["readme", "tutorial"],
)
def test_postroom_run_works_where_a_page_names_it(
    page: str, block: int, module: str, inbox: str, printed: str, tmp_path: Path
) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert f"postroom run {module}:room" in text
    program = programs_in(ROOT / page, text)[0]
    run(program, tmp_path)  # a reader has come this far, and has the tables
    (tmp_path / f"{module}.py").write_text(program.blocks[block].code, "utf-8")
    with sync.Postroom(f"sqlite:///{tmp_path}/shop.db") as room:
        payment = {"amount": 7, "cents": 7}
        room.inbox(inbox).enqueue("payment.received", payment, source="bank", message_id="evt_9")
    with subprocess.Popen(
        [sys.executable, "-c", "from postroom.cli import main; main()", "run", f"{module}:room"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        watchdog = threading.Timer(60, worker.kill)
        watchdog.start()
        assert worker.stdout is not None
        assert printed in worker.stdout  # reads on until the handler has printed it
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        watchdog.cancel()


class TestTheRule:
    PAGE = "```python\nprint(1)\n```\n\n```text\n1\n```\nand\n```python\nx = 2\n```\nwords\n```text\nnot output\n```\n"

    def test_text_right_behind_a_block_is_its_output(self) -> None:
        [program] = programs_in(PAGES[0], self.PAGE)
        assert [block.output for block in program.blocks] == ["1\n", ""]

    def test_a_comment_begins_a_new_program(self) -> None:
        programs = programs_in(PAGES[0], self.PAGE + "\n<!-- new program -->\n```python\nprint(x)\n```\n")
        assert [len(program.blocks) for program in programs] == [2, 1]

    def test_output_that_is_not_shown_is_found(self, tmp_path: Path) -> None:
        [program] = programs_in(PAGES[0], "```python\nprint(1)\n```\n")
        assert run(program, tmp_path) == ["1\n"]
        assert program.blocks[0].output != "1\n"

    def test_a_program_that_fails_is_found(self, tmp_path: Path) -> None:
        [program] = programs_in(PAGES[0], "```python\n1 / 0\n```\n")
        with pytest.raises(pytest.fail.Exception, match="ZeroDivisionError"):
            run(program, tmp_path)

    def test_a_file_is_written_and_a_command_is_run(self, tmp_path: Path) -> None:
        page = "<!-- file: in/greet.py -->\n```python\nprint('hello')\n```\nrun it:\n<!-- run -->\n"
        page += "```console\npython in/greet.py\necho $((1 + 1))\n```\n\n```text\nhello\n2\n```\n"
        [program] = programs_in(PAGES[0], page)
        assert run(program, tmp_path) == ["", "hello\n2\n"] == [block.output for block in program.blocks]

    def test_a_command_that_fails_is_found(self, tmp_path: Path) -> None:
        [program] = programs_in(PAGES[0], "<!-- run -->\n```console\nfalse\ntrue\n```\n")
        with pytest.raises(pytest.fail.Exception, match="CalledProcessError"):
            run(program, tmp_path)

    def test_a_command_is_run_only_where_the_page_says_so(self) -> None:
        assert programs_in(PAGES[0], "```console\nfalse\n```\n<!-- run --> and\n```console\nfalse\n```\n") == []

    def test_a_program_with_a_postgresql_address_gets_a_database_of_its_own(self, tmp_path: Path) -> None:
        page = "```python\nimport psycopg\nwith psycopg.connect('postgresql://localhost/shop') as db:\n"
        page += (
            "    db.execute('CREATE TABLE orders AS SELECT 7 AS id')\n```\n```sql\nSELECT id, 'x' FROM orders\n```\n"
        )
        [program] = programs_in(PAGES[0], page)
        assert run(program, tmp_path) == ["", "7 | x\n"]
        assert run(program, tmp_path) == ["", "7 | x\n"]  # the next run has another

    def test_only_that_address_is_replaced(self) -> None:
        text = (
            "'postgresql+asyncpg://localhost/shop?pool_size=3' 'postgresql://localhost/shopping' 'postgresql://db/shop'"
        )
        [program] = programs_in(PAGES[0], f"```python\n{text}\n```\n")
        assert program.text_on(postgres="postgresql://me@here:5/real").splitlines()[1] == (
            "'postgresql+asyncpg://me@here:5/real?pool_size=3' 'postgresql://localhost/shopping' 'postgresql://db/shop'"
        )

    def test_a_program_with_a_redis_address_gets_an_empty_server(self, tmp_path: Path) -> None:
        page = "```python\nimport redis\nwith redis.Redis.from_url('redis://localhost:6379/0') as client:\n"
        page += "    print(client.incr('runs'), client.dbsize())\n```\n"
        [program] = programs_in(PAGES[0], page)
        assert run(program, tmp_path) == ["1 1\n"]
        assert run(program, tmp_path) == ["1 1\n"]  # nothing is left of the run before

    def test_only_that_address_of_redis_is_replaced(self) -> None:
        text = "'redis://localhost:6379/0?pool_size=3' 'redis://localhost:6379/01' 'redis://cache:6379/0'"
        [program] = programs_in(PAGES[0], f"```python\n{text}\n```\n")
        assert program.text_on(redis="redis://127.0.0.1:5/0").splitlines()[1] == (
            "'redis://127.0.0.1:5/0?pool_size=3' 'redis://localhost:6379/01' 'redis://cache:6379/0'"
        )
