"""A room that was used before a fork is used after it in both processes at once, as gunicorn does with preload."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom import State
from postroom.sync import Postroom
from tests import redis
from tests.postgres import clean_database, with_driver

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes can fork")

MANY = 30

STORES: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "sqlite": lambda folder: (f"sqlite:///{folder}/room.db", {"deploy_schema": True}),
    "asyncpg": lambda _: (with_driver(clean_database(), "asyncpg"), {}),
    "psycopg": lambda _: (with_driver(clean_database(), "psycopg"), {}),
    "redis": lambda _: (redis.server(), {"prefix": redis.new_prefix()}),
}

PROGRAM = f"""
import asyncio, os, sys
from importlib import import_module

MANY = {MANY}
mode, url, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
room = import_module("postroom.sync" if mode == "sync" else "postroom").Postroom(url, **options)

async def write_async(name):
    for first in range(0, MANY, 5):
        await asyncio.gather(*(room.outbox().enqueue("t", f"{{name}} {{n}}") for n in range(first, first + 5)))
        await room.outbox().find(limit=3)

def write_sync(name):
    for n in range(MANY):
        room.outbox().enqueue("t", f"{{name}} {{n}}")
        room.outbox().find(limit=3)

runner = asyncio.Runner()

def write(name, run=runner.run):
    write_sync(name) if mode == "sync" else run(write_async(name))

write("before")
reading, writing = os.pipe()
if (child := os.fork()) == 0:
    os.write(writing, b"x")
    write("child", asyncio.run)
    if mode == "async":
        os._exit(0)  # its copy of the parent's event loop has tasks, of which Python would complain at the end
    sys.exit(0)  # what it has from its parent is collected, too
os.read(reading, 1)
write("parent")
assert os.waitpid(child, 0)[1] == 0, "the child failed"
write("after")
closing = room.close()
if mode == "async":
    runner.run(closing)
    runner.close()
"""


async def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", STORES)
async def test_both_processes_go_on(name: str, mode: str, tmp_path: Path) -> None:
    if (name, mode) == ("asyncpg", "sync"):
        pytest.skip("asyncpg is for async code")
    url, options = STORES[name](tmp_path)
    done = await run(PROGRAM, mode, url, repr(options))
    lines = [line for line in done.stderr.splitlines() if "may lose messages" not in line]
    assert (lines, done.returncode) == ([], 0)
    plain = url.replace("+asyncpg", "").replace("+psycopg", "")
    with Postroom(plain, **options) as room:
        assert room.outbox().counts()[State.WAITING] == 4 * MANY


POOLS = {
    "psycopg": """
from psycopg_pool import ConnectionPool
pool = ConnectionPool(url, min_size=1, open=True)
""",
    "sqlalchemy": """
from sqlalchemy import create_engine
pool = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
""",
}

REFUSED = """
import os, sys
url = sys.argv[1]
{pool}
from postroom import PoolForked
from postroom.sync import Postroom
room = Postroom("postgresql://", pool=pool)
room.outbox().enqueue("t", "before")
if (child := os.fork()) == 0:
    try:
        room.outbox().enqueue("t", "child")
    except PoolForked as error:
        print(error)
    {again}
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
room.outbox().enqueue("t", "parent")
print(sum(room.outbox().counts().values()))
room.close()
"""


@pytest.mark.parametrize("name", POOLS)
async def test_a_pool_of_the_user_is_refused_after_a_fork(name: str) -> None:
    again = 'pool.dispose(close=False); room.outbox().enqueue("t", "disposed")' if name == "sqlalchemy" else "pass"
    done = await run(REFUSED.format(pool=POOLS[name], again=again), clean_database())
    said, count = done.stdout.splitlines()
    assert "was used before a fork" in said
    assert ("dispose(close=False)" in said) is (name == "sqlalchemy")
    assert (int(count), done.returncode) == (3 if name == "sqlalchemy" else 2, 0)
