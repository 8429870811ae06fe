"""The regression suite for users' own stores: the example suite of the golden stores, after which
Java brokers serve the results.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.testing.java import JavaHome

pytestmark = pytest.mark.interop

STORES = ("classic", "lagging", "controller")
SUITE = Path(__file__).parents[1] / "suite" / "suite.toml"


def test_java_serves_the_golden_stores_after_the_suite(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    for version in ("4.9.7", "5.3.3"):
        if (reason := JavaHome(version).missing()) is not None:
            pytest.skip(reason)
    for name in ("A-classic-clean-v497", "B-lagging-slave-v497", "I-controller-v533"):
        assert golden_copy(name).parent == tmp_path
    shutil.copy(SUITE, tmp_path)
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    words = [str(tmp_path / SUITE.name), "--json", str(report), "--html", str(page)]
    code = main(["suite", "run", *words])
    cases = json.loads(report.read_text())["cases"]
    assert code == 0, [case["findings"] for case in cases]
    assert len(cases) == 27
    facts = {(case["store"], case["case"]): case["facts"] for case in cases}
    for store in STORES:
        older, newer = (facts[store, f"java-{version}"] for version in ("4.9.7", "5.3.3"))
        assert older["same"] == older["messages"] > 100
        # The newer broker opens what the older one left, and adds messages of its system topics.
        assert newer["same"] == older["messages"] <= newer["messages"]
        controller = facts[store, "controller-5.3.3"]
        assert controller["same"] == controller["messages"] > older["messages"]
        assert (controller["lost"], controller["certificate"]) == (0, "EQUAL")
    hooks = (tmp_path / "hooks.log").read_text().splitlines()
    assert hooks == [
        f"{store} {hook}"
        for store in STORES
        for hook in ("before switch", "after leave", "after controller")
    ]
    assert page.read_text().count("<tr>") == 30


def test_a_classic_group_goes_to_a_controller_at_once_and_its_pauses_are_judged(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """No pause is short enough: the findings are those two, and nothing else."""
    if (reason := JavaHome("5.3.3").missing()) is not None:
        pytest.skip(reason)
    group = golden_copy("B-lagging-slave-v497")
    replicas = "".join(f'[[store.replica]]\npath = "{group / m}"\n' for m in ("master", "slave"))
    suite, report = tmp_path / "suite.toml", tmp_path / "report.json"
    suite.write_text(
        'java = ["5.3.3"]\nstages = ["check", "prepare", "controller"]\n'
        '[limits]\ncontroller_pause_s = 0\nlag_s = 60\n[hooks]\nafter_controller = ["false"]\n'
        f'[[store]]\nname = "b"\n{replicas}'
    )
    assert main(["suite", "run", str(suite), "--json", str(report)]) == 2
    *before, controller = json.loads(report.read_text())["cases"]
    assert [case["status"] for case in before] == ["passed", "passed"]
    assert (controller["case"], controller["status"]) == ("controller-5.3.3", "failed")
    findings = [each.partition(":")[0] for each in controller["findings"]]
    assert findings == ["pause_s", "hook false", "failover_pause_s"]
    facts = controller["facts"]
    assert facts["same"] == facts["messages"] > 361 and facts["lost"] == 0
