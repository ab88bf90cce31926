"""What random histories are made of: boxes, drafts, filters and small sets of values.

Names are few, so that duplicates, groups and collapse keys meet often.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from hypothesis import strategies as st

from postroom.spi import Box, Delivery, Draft, Filter, Key, Order, Retention, State

OWNERS = (UUID(int=1), UUID(int=2), UUID(int=3))
TOPICS = ("x", "y")
NO_TOPIC = ""
"""What a message has that was only recorded, and then marked."""
EVERYTHING = Filter(limit=10_000)
ENOUGH = 10_000
UNFINISHED = frozenset({State.SEEN, State.WAITING, State.CLAIMED, State.DEAD})


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


PLAIN = Order()
UNBLOCK = Order(fifo=True)
BLOCK = Order(fifo=True, on_dead="block")
SHORT_MEMORY = Retention(dedup_window=seconds(15), age_from="completed_at")
FORGETFUL = Retention(on_success="delete", dead_letter="discard")
TopicChoices = tuple[frozenset[str] | None, ...]
ONE_TOPIC: TopicChoices = (frozenset({"x"}), frozenset({"y"}))
ANY_TOPICS: TopicChoices = (None, *ONE_TOPIC, frozenset(TOPICS))
LIMITED = Delivery(max_deliveries=2, on_stale_ack="requeue")

BOXES = [
    Box("inbox", "plain", PLAIN),
    Box("inbox", "plain-limited", PLAIN, LIMITED, SHORT_MEMORY),
    Box("outbox", "plain-forgetful", PLAIN, retention=FORGETFUL),
    Box("inbox", "fifo", UNBLOCK),
    Box("outbox", "fifo-limited", UNBLOCK, LIMITED, SHORT_MEMORY),
    Box("inbox", "fifo-forgetful", UNBLOCK, retention=FORGETFUL),
    Box("inbox", "block", BLOCK),
    Box("outbox", "block-limited", BLOCK, LIMITED, SHORT_MEMORY),
]


LINE_BOXES = [Box("inbox", "line", UNBLOCK), Box("outbox", "line-block", BLOCK)]

sources = st.sampled_from(["a", "b"])
message_ids = st.sampled_from(["1", "2", "3", "4"])
keys = st.builds(Key, sources, message_ids)
owners = st.sampled_from(OWNERS)
leases = st.sampled_from([5, 10, 30]).map(seconds)
delays = st.sampled_from([None, None, seconds(3), seconds(20)])
ages = st.sampled_from([0, 10, 50]).map(seconds)
offsets = st.sampled_from([None, None, None, -5, 8, 25])
topic_choices = st.integers(0, 11)
"""Which of the topic_choices of a history: each has the same weight."""
verdicts = st.sampled_from(["done", "done", "retry", "release", "dead"])
errors = st.sampled_from([None, "boom", "bang"])
numbers = st.integers(0, 10_000)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Draft, int | None, int | None]:
    """A draft, with its due and expires as seconds from now: the clock is known only when it is put."""
    payload: str | bytes = draw(st.sampled_from(["p", "q"]) | st.just(b"p"))
    draft = Draft(
        *draw(keys),
        topic=draw(st.sampled_from(TOPICS)),
        payload=payload,
        format="bytes" if isinstance(payload, bytes) else "text",
        headers=draw(st.sampled_from([None, {"trace": "1"}])),
        correlation_id=draw(st.sampled_from([None, "c"])),
        group=draw(st.sampled_from([None, "g", "g", "h"])),
        collapse_key=draw(st.sampled_from([None, None, "k"])),
        hash=draw(st.sampled_from([None, b"1", b"2"])),
        hash_algorithm=draw(st.sampled_from(["sha256", "sha256", "md5"])),
        lifetime=draw(st.sampled_from([None, None, None, None, seconds(15)])),
        on_conflict=draw(st.sampled_from(["update", "keep", "reject"])),
        revive_dead=draw(st.booleans()),
        on_duplicate=draw(st.sampled_from(["update", "update", "reject"])),
    )
    return draft, draw(offsets), draw(st.sampled_from([None, None, None, None, None, None, 12, 35]))


line_plans = st.tuples(
    st.builds(
        Draft,
        source=st.just("a"),
        message_id=st.sampled_from(["1", "2", "3", "4", "5", "6"]),
        topic=st.sampled_from(TOPICS),
        group=st.sampled_from(["g", "g", "h"]),
        **dict.fromkeys(("headers", "correlation_id", "collapse_key", "hash", "due", "expires", "lifetime"), st.none()),
        received_at=st.none(),
        payload=st.just("p"),
        format=st.just("text"),
        hash_algorithm=st.just("sha256"),
        on_conflict=st.just("update"),
        revive_dead=st.just(False),
        join=st.none(),
        on_duplicate=st.sampled_from(["update", "update", "reject"]),
    ),
    st.sampled_from([None, None, 8]),
    st.none(),
)
"""Messages in groups: some with a due time, none that expires."""

filters = st.builds(
    Filter,
    topic=st.sampled_from([None, None, "x"]),
    source=st.sampled_from([None, None, "a"]),
    message_id=st.sampled_from([None, None, "1"]),
    group=st.sampled_from([None, None, "g"]),
    correlation_id=st.sampled_from([None, None, "c"]),
    limit=st.sampled_from([1, 2, 100]),
    # `builds` would make up values for these.
    states=st.none(),
    ids=st.none(),
    after=st.just(0),
    blocking=st.just(False),
    keys=st.none(),
)
