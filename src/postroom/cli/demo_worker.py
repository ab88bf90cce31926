"""A worker of `postroom demo`: a process that handles messages, badly, until its pipe is closed.

It shows the whole pattern of exactly-once effects: claim, then write the effects and settle the claims in one
transaction of the database that has both.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection

from postroom import OwnerToken
from postroom._kernel.message import AnyMessage
from postroom.sync import Inbox, Postroom

LEASE_SECONDS = 1
BATCH_SIZE = 25
MAX_ATTEMPTS = 5
FAILURE_RATE = 0.15
RETRY_DELAY = timedelta(milliseconds=50)
HANDLING_SECONDS = 0.002
IDLE_SECONDS = 0.05
READY, DIE = "ready", "die"


def work(file: str, owner: OwnerToken, parent: Connection) -> None:
    """Handle what there is, until the parent closes its end of the pipe."""
    quiet()
    doomed = idle = False
    with Postroom(f"sqlite:///{file}") as room, closing(connect(file)) as db:
        inbox = room.inbox(max_attempts=MAX_ATTEMPTS)
        parent.send(READY)
        while True:
            if parent.poll(IDLE_SECONDS if idle else 0):
                try:
                    doomed = parent.recv() == DIE
                except EOFError:
                    return
            messages = inbox.claim(owner, lease_seconds=LEASE_SECONDS, batch_size=BATCH_SIZE)
            idle = not messages
            if messages:
                handle_batch(inbox, owner, messages, db, doomed=doomed)


def quiet() -> None:
    """Turns output off: the parent process writes to the same terminal."""
    logging.getLogger("postroom").addHandler(logging.NullHandler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c ends the parent, and with it the pipe


def connect(file: str) -> sqlite3.Connection:
    """The application's own connection. It is in our hands when a transaction begins and ends."""
    return sqlite3.connect(file, timeout=30, isolation_level=None)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def handle_batch(
    inbox: Inbox, owner: OwnerToken, messages: list[AnyMessage], db: sqlite3.Connection, *, doomed: bool
) -> None:
    """Effects and outcomes commit together: there is no effect without its ack, and no ack without its effect."""
    handled: list[AnyMessage] = []
    failed: list[tuple[AnyMessage, str]] = []
    for message in messages:
        try:
            handle(message)
            handled.append(message)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is an outcome
            failed.append((message, str(error)))
    with transaction(db):
        held = inbox.ack(owner, handled, tx=db)  # False if the lease was lost: another worker handles that message
        effects = [(message.message_id, str(owner)) for message, ours in zip(handled, held, strict=True) if ours]
        db.executemany("INSERT INTO effects (message_id, worker) VALUES (?, ?)", effects)
        for message, reason in failed:
            give_back(inbox, owner, message, reason, db)
        if doomed:
            kill_myself()  # the worst moment: effects are written, messages are held, nothing is committed


def handle(message: AnyMessage) -> None:
    """The business: it takes its time, fails now and then, and always for a poison message."""
    time.sleep(HANDLING_SECONDS)
    if message.payload["poison"]:
        raise ValueError("this message can never be handled")
    if message.attempt + 1 < MAX_ATTEMPTS and random.random() < FAILURE_RATE:
        raise TimeoutError("a service did not respond in time")


def give_back(inbox: Inbox, owner: OwnerToken, message: AnyMessage, reason: str, db: sqlite3.Connection) -> None:
    if message.attempt + 1 < MAX_ATTEMPTS:
        inbox.abandon(owner, [message], last_error=reason, delay=RETRY_DELAY, tx=db)
    else:
        inbox.fail(owner, [message], error=reason, tx=db)


def kill_myself() -> None:
    """As kill -9 does, or the kernel when memory runs out: no handler, no `finally`, no rollback."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # SIGTERM is as hard on Windows
