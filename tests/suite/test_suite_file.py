"""The suite file: what it may say, and a sentence for everything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.model.errors import ConfigError
from rmqpy.suite.suite_file import STAGES, read_suite, suite_of_store

ONE = '[[store]]\nname = "one"\n[[store.replica]]\npath = "store"\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "new" / "commitlog").mkdir(parents=True)
    (tmp_path / "new" / "dledger-n0" / "data").mkdir(parents=True)
    (tmp_path / "new" / "dledger-n0" / "data" / "0").touch()

    def written(text: str) -> Path:
        path = tmp_path / "suite.toml"
        path.write_text(text)
        return path

    return written


def test_a_short_file_has_all_stages_and_default_limits(write: Callable[[str], Path]) -> None:
    plan = read_suite(write(ONE))
    assert plan.name == "suite"
    assert plan.cases_of(plan.stores[0]) == STAGES[:-1], "no Java of 5.x, and no controller"
    assert plan.stores[0].replicas[0].path == plan.folder / "store"
    assert plan.limits.pauses_s["switch"] == 30
    assert suite_of_store(plan.folder / "store", None, ("4.9.7",)).stages == plan.stages
    assert suite_of_store(plan.folder / "store", None, ("5.3.3",)).stages == STAGES


def test_the_stages_keep_their_order_and_java_follows(write: Callable[[str], Path]) -> None:
    text = 'stages = ["leave", "switch", "prepare", "check"]\njava = ["5.3.3"]\n' + ONE
    plan = read_suite(write(text))
    cases = ("check", "prepare", "switch", "leave", "java-5.3.3")
    assert plan.cases_of(plan.stores[0]) == cases


def test_each_version_of_5x_is_a_case_of_the_controller(write: Callable[[str], Path]) -> None:
    plan = read_suite(write('java = ["4.9.7", "5.1.4", "5.3.3"]\n' + ONE))
    assert plan.cases_of(plan.stores[0])[5:] == (
        *("leave", "controller-5.1.4", "controller-5.3.3"),
        *("java-4.9.7", "java-5.1.4", "java-5.3.3"),
    )
    short = 'stages = ["check", "prepare", "controller"]\n'
    alone = read_suite(write(short + ONE))
    assert alone.cases_of(alone.stores[0]) == ("check", "prepare", "controller")
    newer = read_suite(write('java = ["5.3.3"]\n' + short + ONE))
    assert newer.cases_of(newer.stores[0]) == ("check", "prepare", "controller-5.3.3")


def test_a_group_that_runs_dledger_has_no_switch(write: Callable[[str], Path]) -> None:
    group = '[[store]]\nname = "group"\n' + 3 * '[[store.replica]]\npath = "new"\n'
    plan = read_suite(write('stages = ["check", "failover", "leave"]\n' + group))
    assert plan.stores[0].dledger
    assert plan.cases_of(plan.stores[0]) == ("check", "failover", "leave")
    both = read_suite(write(ONE + group))
    assert both.cases_of(both.stores[0]) == STAGES[:-1]
    assert both.cases_of(both.stores[1]) == ("check", "failover", "verify", "leave")


def test_a_dledger_group_leaves_before_it_goes_to_a_controller(
    write: Callable[[str], Path],
) -> None:
    group = '[[store]]\nname = "group"\n' + 3 * '[[store.replica]]\npath = "new"\n'
    with pytest.raises(ConfigError, match="expected leave before controller"):
        read_suite(write('stages = ["check", "controller"]\n' + group))
    plan = read_suite(write('stages = ["check", "leave", "controller"]\n' + group))
    assert plan.cases_of(plan.stores[0]) == ("check", "leave", "controller")


def test_a_store_alone_is_a_suite(tmp_path: Path, write: Callable[[str], Path]) -> None:
    write("")
    assert suite_of_store(tmp_path / "store", None, ()).stores[0].name == "store"
    with pytest.raises(ConfigError, match="found no directory commitlog"):
        suite_of_store(tmp_path, None, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", r"found no \[\[store\]\], expected at least one"),
        ("x = [", "found no valid TOML"),
        ("stagse = []\n" + ONE, r"found the key 'stagse', .*did you mean stages"),
        ('stages = ["swich"]\n' + ONE, "did you mean switch"),
        ('stages = ["check", "switch"]\n' + ONE, "expected prepare before switch"),
        ("stages = []\n" + ONE, "expected some of check"),
        ("stages = 7\n" + ONE, "expected a list of texts"),
        ('java = ["latest"]\n' + ONE, "expected versions such as 4.9.7"),
        ('java = ["4.9.7", "4.9.7"]\n' + ONE, "expected each version once"),
        ('stages = ["check"]\njava = ["4.9.7"]\n' + ONE, "expected the stage leave"),
        ('stages = ["check"]\njava = ["5.3.3"]\n' + ONE, "expected the stage leave"),
        (
            'stages = ["check", "prepare", "controller"]\njava = ["4.9.7", "5.3.3"]\n' + ONE,
            "expected the stage leave",
        ),
        ('stages = ["check", "controller"]\n' + ONE, "expected prepare before controller"),
        (
            'stages = ["check", "prepare", "switch", "controller"]\n' + ONE,
            "expected leave before controller",
        ),
        ("[load]\nper_second = -1\n" + ONE, "expected a number, 0 or more"),
        ("[load]\nper_second = true\n" + ONE, "expected a number, 0 or more"),
        ("[load]\nrate = 1\n" + ONE, "found the key 'rate'"),
        ("[limits]\nlag = 1\n" + ONE, "did you mean lag_s"),
        ("[hooks]\nbefore_swich = []\n" + ONE, "did you mean before_switch"),
        ("[hooks]\nafter_verify = []\n" + ONE, "expected some of before_switch"),
        ("[hooks]\nbefore_switch = ['\"']\n" + ONE, "expected a command line"),
        ("[hooks]\nbefore_switch = ['']\n" + ONE, "expected a command line"),
        ('stages = ["check"]\n[hooks]\nbefore_switch = ["x"]\n' + ONE, "switch is not in stages"),
        ("hooks = 1\n" + ONE, r"expected a table \[hooks\]"),
        ("store = 1\n", r"expected tables \[\[store\]\]"),
        ("[[store]]\n", "found no name, expected a text"),
        ('[[store]]\nname = "a/b"\n', "expected letters, digits"),
        (ONE + ONE, "a name that no other store has"),
        ('[[store]]\nname = "a"\n', "found replica = '0 replicas', expected 1 to 3"),
        (ONE.replace('path = "store"', ""), "found no path"),
        (ONE.replace('"store"', '"none"'), "found no directory commitlog in .*none"),
        (ONE.replace('"store"', '"new"'), "found 1 members of a DLedger group, expected 3"),
        (ONE + '[[store.replica]]\npath = "new"\n', "expected replicas of one kind"),
        (ONE + 'config = "x.conf"\n', "expected a broker.conf"),
        (ONE + "role = 1\n", "found the key 'role'"),
        (ONE.replace("[[store.replica]]", "messages = 1.5\n[[store.replica]]"), "a whole number"),
    ],
)
def test_what_is_wrong_is_named(write: Callable[[str], Path], text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_suite(write(text))


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found no such file"):
        read_suite(tmp_path / "none.toml")
    (tmp_path / "raw.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="expected TOML"):
        read_suite(tmp_path / "raw.toml")
