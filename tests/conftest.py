"""Records which tests prove which requirements: collects the `req` markers of tests that passed.

The tests of the public conformance suite have no markers in their code, since that code is in the wheel. Their ids are
in requirements/conformance.toml, and are added here when the tests are collected.

A full run writes .build/requirements.json, from which tools/requirements.py makes requirements/coverage.md. A run of
some tests leaves the file as it is, since it would contain less than the full run.

Markers travel on the test reports. pytest-xdist sends reports to its controller, so one place collects them with and
without workers.
"""

from __future__ import annotations

import functools
import gc
import json
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.requirements import PROPERTY, ROOT, SERVER_MISSING, known_ids, read_conformance, read_stores

SUITE = "postroom.testing.conformance"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(*ids): the requirements that this test proves")
    config.addinivalue_line("markers", "store(*names): the stores that a test without a parameter for it runs on")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config), "requirements")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Adds the markers of conformance tests. Reports a wrong marker as a collection error, like a syntax error."""
    report = yield
    items = [item for item in report.result or [] if isinstance(item, pytest.Item)]
    for item in items:
        _add_conformance_marker(item)
    wrong = [complaint for item in items for complaint in _complaints(item)]
    wrong += _unknown_conformance_tests(collector)
    if wrong:
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


def _add_conformance_marker(item: pytest.Item) -> None:
    """Marks a test that a class of the conformance suite defines. A test that overrides it has its own markers."""
    if not isinstance(item, pytest.Function) or item.cls is None:
        return
    name = item.originalname
    defined_in = next(base for base in item.cls.__mro__ if name in vars(base))
    ids = _conformance().get(defined_in.__name__, {}).get(name)
    if ids is not None and defined_in.__module__.startswith(SUITE):
        item.add_marker(pytest.mark.req(*ids))


def _unknown_conformance_tests(collector: pytest.Collector) -> Iterator[str]:
    """Yields the entries of requirements/conformance.toml that the collected class of the suite does not have."""
    if isinstance(collector, pytest.Class):
        for base in collector.obj.__mro__:
            if base.__module__.startswith(SUITE):
                for name in sorted(_conformance().get(base.__name__, {}).keys() - vars(base).keys()):
                    yield f"requirements/conformance.toml names {base.__name__}::{name}, which does not exist"


_conformance = functools.cache(read_conformance)
_known_ids = functools.cache(known_ids)


@functools.cache
def _store_names() -> frozenset[str]:
    return frozenset(read_stores().names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for id_ in sorted({id_ for marker in item.iter_markers("req") for id_ in marker.args}):
            item.user_properties.append((PROPERTY, [id_, item.nodeid.partition("[")[0], _stores_of(item)]))


def pytest_collection_finish() -> None:
    """Moves the collected tests out of sight of the garbage collector: they live as long as the process, and a full
    collection that looks at them takes 0.2 seconds."""
    gc.collect()
    gc.freeze()


def _stores_of(item: pytest.Item) -> list[str]:
    """Returns the stores that a test runs on: those that its parameters name, else its marker `store`, else its path.

    The parameter may have any name: a test on every store has one, directly or through a fixture. A path is split into
    words: tests/engines/test_redis_urls.py is about Redis.
    """
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    marked = {name for marker in item.iter_markers("store") for name in marker.args}
    words = set(re.split(r"[/_.]", item.nodeid.partition("::")[0]))
    named = ({str(value) for value in parameters.values()}, marked, words)
    return next((sorted(found) for names in named if (found := names & _store_names())), [])


class Collector:
    """Collects the reports of all tests: runs in the only process, or in the controller of pytest-xdist."""

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
    """Returns True if the run contains every test: all test paths are given, and no option selects tests."""
    options: dict[str, Any] = vars(config.option)
    narrowing = ("keyword", "markexpr", "lf", "deselect", "ignore", "ignore_glob", "collectonly", "stepwise")
    if any(options.get(name) for name in narrowing):
        return False
    given = {Path(config.invocation_params.dir, argument).resolve() for argument in config.args}
    return all((config.rootpath / path).resolve() in given for path in config.getini("testpaths"))
