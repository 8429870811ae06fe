"""The cases of a suite as tests: ``pytest --pyargs rmqpy.suite --rmq-suite suite.toml``.

The tests do not depend on each other: the first one of a store carries out its walk, and all read
its results, in any order and in any worker of pytest-xdist.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.suite.cases import CaseResult, CaseStatus
from rmqpy.suite.runner import SuiteRun, case_of
from rmqpy.suite.suite_file import SuitePlan, read_suite, suite_of_store


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    try:
        plan = _plan(metafunc.config)
    except RmqError as error:  # No test, or skipped ones, would look like success.
        cases, names = [("", str(error))], ["suite"]
    else:
        cases = [(store.name, case) for store in plan.stores for case in plan.cases_of(store)]
        names = ["-".join(each) for each in cases]
    metafunc.parametrize(("store", "case"), cases, ids=names)


def _plan(config: pytest.Config) -> SuitePlan:
    suite, store = config.getoption("--rmq-suite"), config.getoption("--rmq-store")
    if suite:
        return read_suite(Path(suite))
    if store:
        broker_conf, version = config.getoption("--rmq-config"), config.getoption("--rmq-java")
        conf = Path(broker_conf).resolve() if broker_conf else None
        return suite_of_store(Path(store), conf, (version,) if version else ())
    raise ConfigError(
        "found no store to test; give --rmq-suite FILE, or --rmq-store DIR, a storePathRootDir"
    )


@pytest.fixture(scope="session")
def suite_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # The parent is common to all workers.
        base = base.parent
    return SuiteRun(plan=_plan(request.config), work=base / "rmqpy-suite")


def test_case(request: pytest.FixtureRequest, store: str, case: str) -> None:
    assert store, case
    suite_run: SuiteRun = request.getfixturevalue("suite_run")
    (one,) = (each for each in suite_run.plan.stores if each.name == store)
    result = case_of(suite_run.results_of(one, _shown_by_pytest), case)
    print("\n".join([*(f"{key} = {value}" for key, value in result.facts.items()), *result.notes]))
    assert result.status is CaseStatus.PASSED, "\n".join(result.findings)


def _shown_by_pytest(_case: CaseResult) -> None:
    """Print nothing: each case has a test."""
