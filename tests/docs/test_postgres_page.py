"""What the page about PostgreSQL says of rights and settings is so."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from postroom import NewMessage, OwnerToken, State
from postroom._stores.sql.postgres.settings import SERVER_SETTINGS
from postroom._stores.wrapper import innermost
from postroom.sync import Postroom
from tests.docs.pages import ROOT, files_in
from tests.postgres import create_database

PAGE = ROOT / "docs/how-to/use-postgresql.md"
GRANTS = files_in(PAGE)["grants.sql"].splitlines()


@pytest.fixture
def owner() -> str:
    """The URL of a database with our tables, as their owner."""
    url = create_database()
    with Postroom(url) as room:
        room.migrate()
    return url


@pytest.fixture
def role(owner: str) -> Iterator[str]:
    """The name of a role that may log in, and no more; the name is its password too."""
    name = f"postroom_test_{secrets.token_hex(6)}"
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'".encode())
        yield name
        connection.execute(f"DROP OWNED BY {name}".encode())
        connection.execute(f"DROP ROLE {name}".encode())


def granted(owner: str, role: str, grants: list[str]) -> str:
    """The URL of the role, with these rights."""
    with psycopg.connect(owner) as connection:
        for grant in grants:
            connection.execute(grant.replace("shop_app", role).encode())
    parts = urlsplit(owner)
    return parts._replace(netloc=f"{role}:{role}@{parts.hostname}:{parts.port or 5432}").geturl()


def use(url: str) -> None:
    """Every verb, and all views for users."""
    with Postroom(url) as room:
        room.migrate()
        inbox, outbox, worker = room.inbox("line", order="fifo"), room.outbox(), OwnerToken.new()
        inbox.enqueue_many([NewMessage("t", str(n), source="s", message_id=str(n), group="g") for n in range(3)])
        inbox.enqueue("t", "again", source="s", message_id="2", group="g")
        inbox.already_processed("9", "s")
        inbox.mark_processed("8", "s")
        [first] = inbox.claim(worker, batch_size=1)
        inbox.renew(worker, [first])
        inbox.ack(worker, [first])
        inbox.fail(worker, inbox.claim(worker, batch_size=1), "no")
        inbox.replay()
        inbox.reap()
        for number in range(3):
            outbox.enqueue("t", str(number), collapse_key="k")
        outbox.abandon(worker, outbox.claim(worker))
        outbox.enqueue("t", "another")
        outbox.release(worker, outbox.claim(worker))
        use_joins(room, worker)
        innermost(room.store).attend(["inbox:line"], worker, timedelta(seconds=30))
        inbox.purge(State.DONE, older_than=timedelta(0))
        assert inbox.counts()[State.WAITING] == 2
        assert len(outbox.find()) == 4
    with psycopg.connect(url) as connection:
        for view in ("postroom_inbox", "postroom_outbox", "postroom_outbox_join", "postroom_outbox_join_member"):
            connection.execute(f"SELECT * FROM {view}".encode())


def use_joins(room: Postroom, worker: OwnerToken) -> None:
    outbox = room.outbox("joins")
    join = outbox.start_join("acme")
    first, second = (outbox.enqueue("t", {}, join=join) for _ in range(2))
    outbox.attach_message_to_join(join, first)
    outbox.report_step_failed(join, second)
    outbox.enqueue_join_wait(join, on_fail_topic="t")
    outbox.seal_join(join)
    while claimed := outbox.claim(worker):
        outbox.ack(worker, claimed)
    assert [found.status for found in outbox.joins()] == ["failed"]
    assert len(outbox.join_steps(join)) == 2
    outbox.cancel_join(outbox.start_join("acme"))
    outbox.purge(State.DONE, older_than=timedelta(0))
    assert outbox.joins() == []


def test_the_rights_are_enough(owner: str, role: str) -> None:
    use(granted(owner, role, GRANTS))


@pytest.mark.parametrize("missing", GRANTS, ids=lambda grant: " ".join(grant.split()[:2]))
def test_each_of_them_is_needed(owner: str, role: str, missing: str) -> None:
    url = granted(owner, role, [grant for grant in GRANTS if grant != missing])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        use(url)


def test_the_autovacuum_settings_are_those_of_the_table(owner: str) -> None:
    with psycopg.connect(owner) as connection:
        [(options,)] = connection.execute("SELECT reloptions FROM pg_class WHERE relname = 'postroom_queue'")
    thresholds = {f"{int(value):,}" for name, _, value in (o.partition("=") for o in options) if "threshold" in name}
    [said] = re.findall(r"The migration sets the table's own autovacuum: (.*?)\.", PAGE.read_text("utf-8"), re.DOTALL)
    assert set(re.findall(r"[\d,]*\d", said)) == thresholds


def test_the_settings_of_a_connection_are_those_of_the_page() -> None:
    [table] = re.findall(r"^\| setting \| value \| why \|\n\S+\n((?:\|.*\n)+)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert dict(re.findall(r"^\| `(\w+)` \| `([\w ]+)` \|", table, re.MULTILINE)) == SERVER_SETTINGS
