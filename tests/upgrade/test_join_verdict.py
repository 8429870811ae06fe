"""The verdict and the exit code of ``rmqpy upgrade join``, for members that have more, or less."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.upgrade import RunUpgrade, write_first_entry

JOIN = "join n2=n2 --from n0=n0 -c n2=n2.conf --yes"
START = "n2: start its broker"


@pytest.mark.slow
@pytest.mark.parametrize("expires", ["", "n0", "n2"])
@pytest.mark.parametrize(
    ("longer", "code", "verdict"),
    [
        ("", 0, "EQUAL"),
        ("n0", 0, "CONTAINED: n2 in n0, which has "),
        ("n2", 2, "CONTAINED: n0 in n2, which has "),
    ],
)
def test_only_a_member_that_lacks_entries_may_be_contained(
    joined: Path, run: RunUpgrade, expires: str, longer: str, code: int, verdict: str
) -> None:
    """The group sends what a member lacks. What one of the two has expired changes nothing: what
    the member lacks at the start is copied.
    """
    if longer:
        write_first_entry(joined, [longer])
    if expires:
        sorted((joined / expires / "commitlog").iterdir())[0].unlink()
    found, out, _ = run(JOIN)
    assert found == code, out
    *_, not_examined, word, advice = out.splitlines()
    more = "a longer log, with an unknown number of messages more"
    more = more if expires == "n0" else "1 message more"
    assert word == (verdict + more if longer else verdict)
    assert ("the messages of n2 before offset 65536" in not_examined) is (expires == "n0")
    assert (advice == START) is (code == 0)
    assert ("it has entries that n0 lacks" in advice) is (longer == "n2")


@pytest.mark.slow
def test_a_member_joins_with_the_data_of_the_leader_if_the_other_only_lags(
    joined: Path, run: RunUpgrade
) -> None:
    """The advice of the refusal leads on."""
    write_first_entry(joined, ["n1", "n2"])
    code, out, _ = run(JOIN)
    assert code == 2 and "join it with the data of the leader" in out
    code, out, _ = run(JOIN.replace("n0=n0", "n1=n1"))
    assert code == 0 and out.splitlines()[-2:] == ["EQUAL", START]
