"""Which tests prove which requirements: collects the `req` markers of tests that passed.

A full run leaves .build/requirements.json behind, from which tools/requirements.py makes docs/requirements.md. A run of
some tests leaves the file alone: it would know less than the last one.

Markers travel on the reports, and reports are what pytest-xdist sends to its controller, so that one place collects
them with and without workers.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.requirements import PROPERTY, ROOT, SERVER_MISSING, known_ids, read_stores


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "store(*names): the stores that a test without a parameter for it runs on")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config), "requirements")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A wrong marker is an error of collection, like a syntax error: so it is told in the same way by every worker."""
    report = yield
    items = [item for item in report.result or [] if isinstance(item, pytest.Item)]
    if wrong := [complaint for item in items for complaint in _complaints(item)]:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(wrong), []
    return report


def _complaints(item: pytest.Item) -> Iterator[str]:
    for marker in item.iter_markers("req"):
        if not marker.args:
            yield f"{item.nodeid}: the marker req names no requirement"
        for id_ in marker.args:
            if id_ not in _known_ids():
                yield f"{item.nodeid}: there is no requirement {id_!r}"
    for marker in item.iter_markers("store"):
        if not marker.args or not set(marker.args) <= _store_names():
            yield f"{item.nodeid}: the marker store names no store of requirements/status.toml"


_known_ids = functools.cache(known_ids)


@functools.cache
def _store_names() -> frozenset[str]:
    return frozenset(read_stores().names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for id_ in sorted({id_ for marker in item.iter_markers("req") for id_ in marker.args}):
            item.user_properties.append((PROPERTY, [id_, item.nodeid.partition("[")[0], _stores_of(item)]))


def _stores_of(item: pytest.Item) -> list[str]:
    """The stores that a test runs on: those that its parameters name, else its marker `store`, else its path.

    The parameter may have any name: a test on every store has one, directly or through a fixture. Of a path, the words
    count: tests/engines/test_redis_urls.py is about Redis.
    """
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    marked = {name for marker in item.iter_markers("store") for name in marker.args}
    words = set(re.split(r"[/_.]", item.nodeid.partition("::")[0]))
    named = ({str(value) for value in parameters.values()}, marked, words)
    return next((sorted(found) for names in named if (found := names & _store_names())), [])


class Collector:
    """Lives where all reports arrive: in the only process, or in that of xdist's controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._proofs: dict[str, dict[str, set[str]]] = {}
        self._missing: set[str] = set()
        self._complete = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._complete = self._complete and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            _, found, reason = report.longrepr[2].partition(SERVER_MISSING)
            self._missing.update([reason.strip()] if found else [])
        if report.when == "call" and report.passed:
            named: list[tuple[str, Any]] = list(report.user_properties)
            for name, value in named:
                if name == PROPERTY:
                    id_, test, stores = value
                    self._proofs.setdefault(id_, {}).setdefault(test, set()).update(stores)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        finished = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED} and self._complete
        stopped = session.shouldstop or session.shouldfail
        if finished and not stopped and _ran_everything(self._config):
            file = ROOT / ".build/requirements.json"
            file.parent.mkdir(exist_ok=True)
            proofs = {
                id_: {test: sorted(stores) for test, stores in tests.items()} for id_, tests in self._proofs.items()
            }
            record = {"proofs": proofs, "servers_missing": sorted(self._missing)}
            file.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")


def _ran_everything(config: pytest.Config) -> bool:
    """Whether nothing narrowed the run: every test path was given, and no option chose among the tests."""
    options: dict[str, Any] = vars(config.option)
    narrowing = ("keyword", "markexpr", "lf", "deselect", "ignore", "ignore_glob", "collectonly", "stepwise")
    if any(options.get(name) for name in narrowing):
        return False
    given = {Path(config.invocation_params.dir, argument).resolve() for argument in config.args}
    return all((config.rootpath / path).resolve() in given for path in config.getini("testpaths"))
