"""The reference is complete: it contains every public name, verb, option and error. No link is broken."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import postroom
import postroom.cloudevents
import postroom.spi
import postroom.sqlalchemy
import postroom.sync
import postroom.testing
import postroom.web
import postroom.webhooks
from postroom import errors
from postroom._boxes.guard.options import GuardOptions
from postroom._boxes.options import BoxOptions
from postroom._room.options import RoomOptions
from tests.docs.pages import PAGES, ROOT

LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *ROOT.glob("requirements/*.md"),
]
REFERENCE = {page.stem: page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md")}
WORDS = set(re.findall(r"\w+", " ".join(REFERENCE.values())))


MODULES = [postroom, postroom.sync, postroom.spi, postroom.sqlalchemy, postroom.testing, postroom.web]
MODULES += [postroom.cloudevents, postroom.webhooks]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module: object) -> None:
    assert set(module.__all__) - WORDS == set()  # type: ignore[attr-defined]


API = [postroom.Postroom, postroom.Inbox, postroom.Outbox]
SECTIONS = dict(re.findall(r"^### `(\w+\(.*?\))`\n(.*?)(?=^##|\Z)", REFERENCE["api"], re.MULTILINE | re.DOTALL))
"""The text under each heading that is a signature."""


def verbs() -> dict[str, list[inspect.Signature]]:
    """The signatures of each public verb: boxes and rooms have some of the same name."""
    found: dict[str, list[inspect.Signature]] = {}
    for cls in API:
        for name, value in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                found.setdefault(name, []).append(inspect.signature(value))
    return found


def heading(name: str, signature: inspect.Signature) -> str:
    """A signature as the reference shows it: without types, and with `…` for a default that has no literal."""
    shown = [
        parameter.replace(annotation=parameter.empty, default=_Shown(parameter.default))
        if parameter.default is not parameter.empty
        else parameter.replace(annotation=parameter.empty)
        for parameter in list(signature.parameters.values())[1:]
    ]
    return f"{name}{signature.replace(parameters=shown, return_annotation=signature.empty)}"


class _Shown:
    def __init__(self, default: object) -> None:
        self._default = default

    def __repr__(self) -> str:
        if repr(self._default) == "<not given>":
            return "…"
        return f'"{self._default}"' if isinstance(self._default, str) else repr(self._default)


@pytest.mark.parametrize("name", verbs())
def test_every_verb_has_a_heading_with_its_signature(name: str) -> None:
    headings = [each for each in SECTIONS if each.startswith(f"{name}(")]
    longest = max((heading(name, signature) for signature in verbs()[name]), key=len)
    if name == "enqueue":
        longest = "enqueue(topic, payload, *, …)"
    if name == "fail":
        longest = "fail(owner, messages, error, *, tx=…)"  # in an outbox, error has a default
    assert headings == [longest]


COMMON = {"self", "options", "owner", "messages", "message_id", "source", "tx", "name"}
"""Explained for several verbs together."""


@pytest.mark.parametrize("name", verbs())
def test_every_argument_is_explained(name: str) -> None:
    [section] = [text for each, text in SECTIONS.items() if each.startswith(f"{name}(")]
    arguments = {argument for signature in verbs()[name] for argument in signature.parameters}
    assert arguments - COMMON - set(re.findall(r"`(\w+)`", section)) == set()


GUARD_HEADINGS = re.findall(r"^### `(\w+\(.*?\))`$", REFERENCE["guard"], re.MULTILINE)
LIKE_A_BOX = {"find", "dead_letters", "replay", "purge", "reap", "counts"}
"""Verbs of a guard that are those of a box."""


def test_every_verb_of_a_guard_has_a_heading_with_its_signature() -> None:
    found = {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(postroom.Guard, inspect.isfunction)
        if not name.startswith("_") and name not in LIKE_A_BOX
    }
    wanted = {heading(name, signature).replace("<no result>", "…") for name, signature in found.items()}
    assert set(GUARD_HEADINGS) == wanted


def test_every_option_of_a_guard_is_in_the_table() -> None:
    assert (
        set(GuardOptions.__annotations__) - set(re.findall(r"^\| `(\w+)`", REFERENCE["guard"], re.MULTILINE)) == set()
    )


def test_every_option_of_a_room_is_in_the_table() -> None:
    room = REFERENCE["api"].partition("## Room")[2].partition("### ")[0]
    options = {"url", *RoomOptions.__annotations__, "cleaning", "shutdown_timeout"}
    assert options - set(re.findall(r"^\| `(\w+)`", room, re.MULTILINE)) == set()


@pytest.mark.parametrize("cls", API, ids=lambda cls: cls.__name__)
def test_every_property_is_in_a_table(cls: type) -> None:
    properties = {name for name, _ in inspect.getmembers(cls, lambda value: isinstance(value, property))}
    rows = set(re.findall(r"^\| `(\w+)`", REFERENCE["api"], re.MULTILINE))
    assert {name for name in properties if not name.startswith("_")} - rows == set()


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


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
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
    "how-to/join-messages.md": {
        "for compatibility and edge cases: **do not call them in handlers**, since a step ends with its message": (
            "OBX-OQ-02",
        ),
        "There are no joins over several databases": ("OBX-SCP-05",),
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
    "reference/api.md": {
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
def test_the_pages_contain_the_required_sentences(page: str, sentence: str) -> None:
    assert sentence in " ".join((ROOT / "docs" / page).read_text("utf-8").split())
