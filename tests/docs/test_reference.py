"""The reference is complete: every public name, verb, option and error stands in it; and no link is broken."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import postroom
import postroom.spi
import postroom.sqlalchemy
import postroom.sync
import postroom.testing
from postroom import errors
from postroom._faces.options import BoxOptions
from tests.docs.pages import PAGES, ROOT

REFERENCE = {page.stem: page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md")}
WORDS = set(re.findall(r"\w+", " ".join(REFERENCE.values())))


MODULES = [postroom, postroom.sync, postroom.spi, postroom.sqlalchemy, postroom.testing]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module: object) -> None:
    assert set(module.__all__) - WORDS == set()  # type: ignore[attr-defined]


@pytest.mark.parametrize("face", [postroom.Postroom, postroom.Inbox, postroom.Outbox], ids=lambda face: face.__name__)
def test_every_verb_has_a_heading(face: type) -> None:
    verbs = {name for name in dir(face) if not name.startswith("_") and callable(getattr(face, name))}
    verbs |= {name for name in dir(face) if type(getattr(face, name)).__name__ == "verb"}
    headings = set(re.findall(r"^#+ `(\w+)", REFERENCE["faces"], re.MULTILINE))
    assert verbs - headings == set()


def test_every_option_is_in_the_table() -> None:
    rows = set(re.findall(r"^\| `(\w+)`", REFERENCE["options"], re.MULTILINE))
    assert set(BoxOptions.__annotations__) - rows == set()


def test_every_error_is_in_the_table() -> None:
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    rows = set(re.findall(r"^\| `(\w+)`", REFERENCE["errors"], re.MULTILINE))
    assert raised - rows == set()


PROMISES = """\
**At most one recorded completion** for each (source, message id) within the deduplication window.
**Handler calls are at least once** in claim/ack and lease modes, **at most once** in mark-before-handle mode.
**Effects are exactly once** when the handler is *transactional*: its writes, its outgoing messages and the completion \
commit together in one database.
**Nothing accepted is lost.** A message ends as done, as dead (kept, listed, replayable), or is still waiting. Expiry, \
collapse, poison and shutdown all leave a trace.
**No zombie finishes newer work.** Every outcome is fenced by the claim that produced it.
""".splitlines()


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/promises.md"])
def test_the_promises_stand_in_these_words(page: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert [promise for promise in PROMISES if promise not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]*)#([^)\s]+)\)", text) if "://" not in link[0]]
    broken = [link for link in links if link[1] not in anchors((page.parent / link[0]) if link[0] else page)]
    assert broken == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs/index.md"
    listed = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", index.read_text("utf-8"))}
    pages = {page for page in PAGES if page.parent.name != "decisions"}
    assert pages - listed - {index} == set()


SAID: dict[str, dict[str, tuple[str, ...]]] = {
    "how-to/write-handlers.md": {
        "**One by one**: one message per call, in no promised order. The simple choice": ("RHI-021",),
    },
    "how-to/keep-leases.md": {
        "Another worker claims it, and it is handled twice: a late message of a large batch is *stolen*.": ("RHI-102",),
    },
    "explanation/promises.md": {
        "So make the work transactional, or idempotent": ("IBX-077", "OBX-052"),
        "**Exactly once in another system.**": ("OBX-SCP-03",),
        "**Order**, unless the box is FIFO": ("IBX-SCP-05", "OBX-SCP-04"),
        "**Priorities.** There are none.": ("IBX-SCP-08", "OBX-SCP-08"),
        "**A transaction over several databases.** A message lives in one database.": ("IBX-SCP-06",),
        "For work over several, use one message per database, and compensate.": ("OBX-OQ-05",),
        "**How often the sender delivers.**": ("IBX-SCP-02",),
        "does not talk to brokers by itself": ("IBX-SCP-03", "OBX-SCP-02"),
        "holds no business rules: those are yours": ("IBX-SCP-07", "OBX-SCP-07"),
    },
    "reference/faces.md": {
        "a lease of 10 to 300 seconds": ("IBX-119", "OBX-110"),
        "a batch of 1 to 100 messages": ("IBX-120", "OBX-111"),
    },
    "how-to/deploy-the-schema.md": {
        "needs SELECT, INSERT, UPDATE and DELETE on the `postroom_*` tables": ("IBX-126", "OBX-117"),
    },
    "how-to/receive-a-webhook.md": {
        "Hash with a cryptographic function such as SHA-256": ("IBX-129",),
    },
}


def test_only_what_asks_for_words_is_proven_by_words() -> None:
    catalog = tomllib.loads((ROOT / "requirements/catalog.toml").read_text("utf-8"))
    by_docs = {row["id"] for row in catalog["requirement"] if row["verify"] == "docs"}
    assert {id_ for sentences in SAID.values() for ids in sentences.values() for id_ in ids} - by_docs == set()


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        pytest.param(page, sentence, marks=pytest.mark.req(*ids), id=ids[0])
        for page, sentences in SAID.items()
        for sentence, ids in sentences.items()
    ],
)
def test_what_users_must_be_told_is_told(page: str, sentence: str) -> None:
    assert sentence in " ".join((ROOT / "docs" / page).read_text("utf-8").split())
