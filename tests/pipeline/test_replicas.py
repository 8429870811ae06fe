"""``rmqpy pipeline compare | plan | certify``: comparisons of replicas, by both engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.pipeline import flip_bit

from rmqpy.cli import main
from rmqpy.cli.pipeline import replicas as pipeline_replicas
from rmqpy.cli.upgrade import proving
from rmqpy.cli.upgrade.base import replicas as upgrade_replicas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAGGING = ("B-lagging-slave-v497/master", "B-lagging-slave-v497/slave")
EQUAL = ("B-master-slave-v497/master", "B-master-slave-v497/slave")
GAP = tuple(f"X-gap_same_file-v497/n{number}" for number in range(3))
JOINED = tuple(f"C-upgraded-v497/n{number}" for number in range(2))
SPARK = ("--engine", "spark", "--range-bytes", "8192")

Run = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _frozen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pipeline_replicas, proving, upgrade_replicas):
        monkeypatch.setattr(module, "now_ms", lambda: 7)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command and returns its exit code and output."""

    def do(*words: object) -> tuple[int, str]:
        code = main([*map(str, words)])
        output = capsys.readouterr()
        assert code != 1, output.err
        return code, output.out

    return do


def compare(run: Run, *words: object) -> tuple[int, dict[str, Any]]:
    code, out = run("pipeline", "compare", *words, "--format", "json")
    return code, json.loads(out)


def test_the_first_missing_message_of_a_lagging_slave_is_found(
    run: Run, store_of: Callable[[str], Path]
) -> None:
    code, report = compare(run, *map(store_of, LAGGING))
    (pair,) = report["pairs"]
    first = pair["first"]
    assert code == 2 and pair["verdict"] == "CONTAINED" and pair["differences"] == [first]
    assert pair["contained"] == [{"inner": "slave", "outer": "master", "more": 70}]
    assert pair["sentences"] == [
        "the classic log of master ends at 341158, that of slave at 229443; the first message after"
        " that is topic Normal, queue 0 offset 33",
        "10 messages missing in slave: topic Keyed, queue 0 offset 20 to 24, queue 1 offset 20"
        " to 24",
        "60 messages missing in slave: topic Normal, queue 0 offset 33 to 47, queue 1 offset 33"
        " to 47, queue 2 offset 31 to 45, queue 3 offset 30 to 44",
    ]
    assert (first["kind"], first["begin"], first["end"]) == ("END", 229443, 341158)
    record = first["record"]
    assert (record["offset"], record["topic"]) == (229443, "Normal")
    assert (record["queue_id"], record["queue_offset"]) == (0, 33)


@pytest.mark.slow
def test_every_pair_of_a_wrongly_joined_group_is_compared(
    run: Run, store_of: Callable[[str], Path]
) -> None:
    code, report = compare(run, *map(store_of, GAP))
    pairs = {(pair["left"], pair["right"]): pair for pair in report["pairs"]}
    assert code == 2 and pairs["n1", "n2"]["verdict"] == "EQUAL"
    for other in ("n1", "n2"):
        first = pairs["n0", other]["first"]
        assert (first["kind"], first["log"], first["begin"]) == ("END", "classic", 222613)
        record = first["record"]
        assert (record["offset"], record["topic"]) == (222613, "Normal")
        assert (record["queue_id"], record["queue_offset"]) == (0, 30)
    code, out = run("pipeline", "compare", *map(store_of, GAP))
    assert (
        "n1 and n2: EQUAL" in out
        and "n0 and n1: DIFFERENT" in out
        and "the classic log of n0 ends at 224528, that of n1 at 222613; the first message after"
        " that is topic Normal, queue 0 offset 30"
        in out
    )


def test_compare_and_certify_name_the_same_missing_messages(
    run: Run, store_of: Callable[[str], Path]
) -> None:
    """One reads the messages through their queues, the other only the sums of the log."""
    stores = [*map(store_of, LAGGING)]
    certified, compared = (run("pipeline", verb, *stores)[1] for verb in ("certify", "compare"))
    found = {
        line.partition("; first")[0] for line in certified.splitlines() if "missing in" in line
    }
    assert len(found) == 2
    assert found == {line for line in compared.splitlines() if "missing in" in line}


def test_a_file_that_only_one_replica_has_is_a_difference(
    run: Run, copy_of: Callable[[str], Path]
) -> None:
    master, slave = map(copy_of, EQUAL)
    sorted((slave / "commitlog").iterdir())[1].unlink()
    for stores in ((master, slave), (slave, master)):
        code, out = run("pipeline", "compare", *stores)
        assert code == 2 and out.splitlines()[2].endswith(": DIFFERENT")
        assert out.splitlines()[3:] == [
            "  slave lacks the files of the classic log between offsets 65536 and 131072"
        ]


def test_tables_are_compared_in_the_words_of_a_certificate(
    run: Run, copy_of: Callable[[str], Path]
) -> None:
    master, slave = map(copy_of, EQUAL)
    path = slave / "config/topics.json"
    path.write_text(path.read_text().replace('"perm":6', '"perm":4', 1))
    certified, compared = (
        [line for line in run("pipeline", verb, master, slave)[1].splitlines() if "topics" in line]
        for verb in ("certify", "compare")
    )
    assert certified == compared and len(compared) == 1


def test_equal_replicas_have_no_differences(run: Run, store_of: Callable[[str], Path]) -> None:
    code, report = compare(run, *map(store_of, EQUAL))
    assert code == 0 and report["pairs"][0]["differences"] == []


def test_the_first_different_byte_is_found(run: Run, copy_of: Callable[[str], Path]) -> None:
    master, slave = map(copy_of, EQUAL)
    flip(slave, 1, 30000)
    code, report = compare(run, master, slave)
    first = report["pairs"][0]["first"]
    assert code == 2 and (first["kind"], first["begin"]) == ("CONTENT", 65536 + 30000)
    record = first["record"]
    assert record["offset"] <= 65536 + 30000 < record["offset"] + record["size"]


def flip(store: Path, number: int, place: int) -> None:
    flip_bit(sorted((store / "commitlog").iterdir())[number], place)


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Callable[[Path], Path]:
    """Return a function that writes the manifest of a store, as another host would send it."""

    def save(store: Path) -> Path:
        path = tmp_path / f"{store.name}.json"
        path.write_text(run("upgrade", "manifest", store, "--format", "json")[1])
        return path

    return save


@pytest.mark.slow
def test_a_store_is_compared_with_the_manifest_of_another_host(
    run: Run, store_of: Callable[[str], Path], saved: Callable[[Path], Path]
) -> None:
    master, slave = map(store_of, LAGGING)
    # The longer log is local: a digest of its start decides, and its first message is known.
    code, report = compare(run, master, f"slave={saved(slave)}")
    (difference,) = report["pairs"][0]["differences"]
    assert code == 2 and (difference["kind"], difference["begin"]) == ("END", 229443)
    assert difference["record"]["queue_offset"] == 33
    assert [each["at_hand"] for each in report["replicas"]] == [True, False]
    # Only the shorter log is local: the messages in the block of its end remain undecided.
    code, report = compare(run, f"master={saved(master)}", slave)
    kinds = [each["kind"] for each in report["pairs"][0]["differences"]]
    assert code == 2 and kinds == ["UNDECIDED", "END"]
    code, report = compare(run, saved(master), f"twin={saved(master)}")
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", [100, 32000])
def test_a_difference_in_the_last_block_is_found(
    place: int,
    run: Run,
    copy_of: Callable[[str], Path],
    saved: Callable[[Path], Path],
) -> None:
    """The bytes are in the last block before the end of the shorter log."""
    master, slave = map(copy_of, LAGGING)
    flip(slave, 3, place)
    code, report = compare(run, master, f"slave={saved(slave)}")
    first = report["pairs"][0]["first"]
    assert code == 2 and (first["kind"], first["begin"]) == ("CONTENT", 196608)
    assert first["record"]["offset"] == 196608


def test_a_different_block_is_found_with_a_manifest_on_either_side(
    run: Run, copy_of: Callable[[str], Path], saved: Callable[[Path], Path]
) -> None:
    master, slave = map(copy_of, EQUAL)
    flip(slave, 1, 30000)
    for words in ((master, f"slave={saved(slave)}"), (f"master={saved(master)}", slave)):
        code, report = compare(run, *words)
        first = report["pairs"][0]["first"]
        assert code == 2 and first["kind"] == "CONTENT"
        assert first["begin"] <= 65536 + 30000 < first["end"]
        record = first["record" if words[0] == master else "other"]
        assert first["begin"] <= record["offset"] < first["end"]


def test_invalid_replicas_are_refused(
    store_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master = str(store_of(LAGGING[0]))
    assert main(["pipeline", "compare", master]) == 1
    assert main(["pipeline", "certify", master]) == 1
    assert main(["pipeline", "compare", master, master]) == 1
    assert "different names" in capsys.readouterr().err
    (tmp_path / "junk").write_text("{}")
    assert main(["pipeline", "compare", master, str(tmp_path / "junk")]) == 1
    assert "not a manifest" in capsys.readouterr().err


@pytest.mark.slow
def test_a_certificate_is_created_and_checked(
    run: Run, copy_of: Callable[[str], Path], tmp_path: Path
) -> None:
    one, two = map(copy_of, JOINED)
    key, out = tmp_path / "key", tmp_path / "certificate.json"
    key.write_text("secret\n")
    code, output = run("pipeline", "certify", one, two, "--out", out, "--key", key)
    assert code == 0 and output.splitlines()[-1] == "EQUAL"
    check = ("pipeline", "certify", "--check", out)
    assert run(*check, one, two, "--key", key) == (0, "HOLDS (n0, n1)\n")
    assert run(*check) == (0, "HOLDS (no store was given)\n")
    (tmp_path / "other").write_text("other")
    code, output = run(*check, "--key", tmp_path / "other")
    assert code == 2 and "signature" in output
    body = next(path for path in (two / "commitlog").iterdir())
    flip(two, 0, body.read_bytes().index(b"UNIQ_KEY\x01") + 12)
    code, output = run(*check, one, two)
    assert code == 2 and "with different content" in output and "DOES NOT HOLD" in output
    code, output = run(*check, f"n7={one}")
    assert code == 2 and "n7: not in the certificate" in output


@pytest.mark.slow
def test_an_unsigned_certificate_does_not_replace_a_signed_one(
    run: Run,
    store_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key, out = tmp_path / "secret.key", tmp_path / "certificate.json"
    key.write_text("a secret of the operator")
    stores = [*map(store_of, JOINED)]
    assert run("pipeline", "certify", *stores, "--key", key, "--out", out)[0] == 0
    signed = out.read_bytes()
    for verb in (("pipeline", "certify"), ("upgrade", "verify")):
        assert main([*verb, *map(str, stores), "--out", str(out)]) == 1
        assert "is a signed certificate: give --key" in capsys.readouterr().err
        assert out.read_bytes() == signed
        assert run(*verb, *stores, "--key", key, "--out", out)[0] == 0


def test_certify_and_verify_print_the_same(run: Run, store_of: Callable[[str], Path]) -> None:
    stores = [*map(store_of, JOINED)]
    certified = run("pipeline", "certify", *stores, "--format", "json")
    verified = run("upgrade", "verify", *stores, "--format", "json")
    assert certified[0] == verified[0] == 0
    assert json.loads(certified[1]) == json.loads(verified[1])


@pytest.mark.slow
def test_a_store_is_certified_against_an_earlier_manifest(
    run: Run, store_of: Callable[[str], Path], saved: Callable[[Path], Path]
) -> None:
    before = saved(store_of(JOINED[0]))
    code, output = run("pipeline", "certify", f"before={before}", store_of(JOINED[1]))
    assert code == 0 and "560 the same" in output
    code, output = run("pipeline", "certify", *map(store_of, LAGGING))
    contained = "CONTAINED: slave in master, which has 70 messages more"
    assert code == 2 and output.splitlines()[-1] == contained


@pytest.mark.slow
def test_the_plan_is_that_of_upgrade(
    run: Run, store_of: Callable[[str], Path], tmp_path: Path
) -> None:
    stores = [*map(store_of, LAGGING)]
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    assert run("pipeline", "plan", *stores, "--out", ours)[0] == 0
    assert run("upgrade", "plan", *stores, "--out", theirs)[0] == 0
    plans = [json.loads(each.read_bytes()) for each in (ours, theirs)]
    for plan in plans:
        for space in plan["space"]:
            del space["free"]  # other programs write to this disk, too
    assert plans[0] == plans[1]


def test_a_divergence_has_no_plan(
    store_of: Callable[[str], Path],
    copy_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    master, slave = map(copy_of, EQUAL)
    flip(slave, 1, 30000)
    assert main(["pipeline", "plan", str(master), str(slave)]) == 2
    assert "refused" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.parametrize("names", [EQUAL, LAGGING, GAP, JOINED], ids=lambda names: names[0])
def test_both_engines_print_the_same(
    names: tuple[str, ...], run: Run, store_of: Callable[[str], Path], spark: SparkSession
) -> None:
    stores = [*map(store_of, names)]
    for verb in ("compare", "certify"):
        words = ("pipeline", verb, *stores, "--format", "json")
        assert run(*words, *SPARK) == run(*words, "--engine", "local")


@pytest.mark.spark
def test_both_engines_plan_the_same(
    run: Run, copy_of: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    master, slave = map(copy_of, LAGGING)
    plan = tmp_path / "plan.json"
    assert run("pipeline", "plan", master, slave, *SPARK, "--out", plan)[0] == 0
    local = run("upgrade", "plan", master, slave, "--format", "json")[1]
    found = json.loads(plan.read_text()), json.loads(local)
    for each in found:
        for space in each["space"]:
            assert space.pop("free") > 0  # Other programs use the disk, too.
    assert found[0] == found[1]
    for node in ("master", "slave"):
        assert run("upgrade", "apply", master, slave, "--plan", plan, "--node", node)[0] == 0
    assert compare(run, master, slave, *SPARK)[0] == 0
    assert run("pipeline", "certify", master, slave, *SPARK)[0] == 0
