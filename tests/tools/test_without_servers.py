"""A machine without Redis or PostgreSQL: a server is started, or a line says which one is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.requirements import ROOT
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import find_valkey

SERVERS = ("redis-", "valkey-", "postgres", "initdb", "pg_")
CLOSED = "127.0.0.1:1"

REDIS = """
import redis
from tools.servers.redis import default_redis
with redis.Redis.from_url(default_redis(), decode_responses=True) as client:
    print(*[key for key in client.info("server") if key.endswith("_version")])
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """All programs of this machine except the servers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if not program.name.startswith(SERVERS) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program.resolve())
    return folder


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_redis_a_private_valkey_is_started(programs: Path) -> None:
    try:
        find_valkey()
    except ServerMissing as reason:
        missing(reason)
    done = run(REDIS, PATH=str(programs), POSTROOM_TEST_REDIS="private")
    assert done.returncode == 0, done.stderr
    assert "valkey_version" in done.stdout.split()


@pytest.mark.parametrize(
    ("module", "variable", "url"),
    [
        ("redis", "POSTROOM_TEST_REDIS", f"redis://{CLOSED}/0"),
        ("postgres", "POSTROOM_TEST_POSTGRES", f"postgresql://{CLOSED}/postgres"),
    ],
)
def test_a_server_that_was_named_and_is_not_there_is_named_in_the_reason(module: str, variable: str, url: str) -> None:
    done = run(f"from tools.servers.{module} import default_{module} as find; find()", **{variable: url})
    assert f"the server of {variable} does not respond" in done.stderr.splitlines()[-1]


def test_a_private_postgresql_is_started_from_what_is_installed() -> None:
    from tools.servers.postgres import find_binaries

    try:
        find_binaries()
    except ServerMissing as reason:
        missing(reason)
    done = run(
        "from tools.servers import postgres as p; url = p.default_postgres(); print(url, p.is_responding(url))",
        POSTROOM_TEST_POSTGRES="private",
    )
    url, responds = done.stdout.split()
    assert ":5432/" not in url
    assert responds == "True"
