"""Tests of the equality certificate: the messages of one store that are, or are not, in another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, evolve
from harness.audit import directory_of, manifest_of

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate import Certificate, certify, check_signature
from rmqpy.codec.backend import scan_records
from rmqpy.codec.scan import Scan
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem

Pair = tuple[Path, Path]


def certificate_of(*stores: Path, files: bool = True, earlier: int = 0) -> Certificate:
    """Compare the stores, whose files may be read only with ``files``. The first ``earlier`` ones
    are earlier states.
    """
    available = {
        store.name: QueueMessages(OsFileSystem(), directory_of(store)) for store in stores if files
    }
    return certify([manifest_of(store) for store in stores], 11, available, earlier=earlier)


@pytest.fixture
def pair(copy_of: Callable[[str], Path]) -> Pair:
    """Return copies of a master and its slave."""
    return copy_of("B-master-slave-v497/master"), copy_of("B-master-slave-v497/slave")


def test_replicas_are_equal(pair: Pair) -> None:
    certificate = certificate_of(*pair)
    assert certificate.is_equal
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.more, comparison.tables) == (279, 0, ())
    for subject in certificate.subjects:
        assert subject.messages == subject.by_queue == subject.by_id == 279
        assert subject.keys == subject.keys_found == 443


@pytest.mark.slow
def test_a_store_before_a_switch_is_contained_in_those_after_it(
    store_of: Callable[[str], Path],
) -> None:
    certificate = certificate_of(
        store_of("B-master-slave-v497/master"),
        *(store_of(f"C-upgraded-v497/n{n}") for n in (0, 1, 2)),
        earlier=1,
    )
    assert certificate.is_equal and certificate.verdict == "CONTAINED"
    contained, equal = certificate.comparisons[:3], certificate.comparisons[3:]
    for comparison in contained:
        assert (comparison.same, comparison.moved, comparison.more) == (279, 0, 281)
        assert comparison.tables == ("consumerOffset.json", "delayOffset.json")
    assert [(each.reference, each.other, each.same, each.more) for each in equal] == [
        ("n0", "n1", 560, 0),
        ("n0", "n2", 560, 0),
    ], "the stores after the switch are compared with each other, too"


def test_messages_that_a_slave_lacks_are_missing(store_of: Callable[[str], Path]) -> None:
    certificate = certificate_of(
        store_of("B-lagging-slave-v497/master"), store_of("B-lagging-slave-v497/slave")
    )
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.missing, comparison.different) == (291, 70, 0)
    assert comparison.differences[0].field == "missing"
    *_, sentence, verdict = certificate.lines()
    assert sentence.startswith("  topic ") and sentence.endswith("nothing in slave")
    assert verdict == "NOT EQUAL"


def test_the_order_of_the_stores_does_not_change_the_verdict(
    store_of: Callable[[str], Path],
) -> None:
    master = store_of("B-lagging-slave-v497/master")
    slave = store_of("B-lagging-slave-v497/slave")
    certificate = certificate_of(slave, master)
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.missing, comparison.more) == (291, 0, 70)
    *_, sentence, verdict = certificate.lines()
    assert (sentence, verdict) == ("  master has 70 messages that slave lacks", "NOT EQUAL")
    assert Certificate.decode(certificate.encode()) == certificate
    assert certificate_of(slave, master, earlier=1).verdict == "CONTAINED"


@pytest.mark.slow
def test_a_wrong_upgrade_gives_one_offset_to_two_messages(store_of: Callable[[str], Path]) -> None:
    certificate = certificate_of(*(store_of(f"X-gap_same_file-v497/n{n}") for n in (0, 1)))
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert comparison.missing == 6 and comparison.different == 1
    changed = {d.queue_offset for d in comparison.differences if d.field != "missing"}
    assert changed == {32}


@define(frozen=True)
class RecordInFile:
    """A record of a log file, which can be damaged."""

    file: Path
    scan: Scan
    row: int

    @classmethod
    def of(cls, store: Path) -> RecordInFile:
        file = sorted((store / "commitlog").iterdir())[1]
        data = memoryview(file.read_bytes())
        return cls(file, scan_records(data, int(file.name), dledger=False, check_crc=False), 25)

    @property
    def start(self) -> int:
        """The position of the record in the file."""
        return self.scan.offset[self.row] - int(self.file.name)

    @property
    def topic(self) -> str:
        return self.scan.topic[self.row].decode()

    @property
    def queue_offset(self) -> int:
        return self.scan.queue_offset[self.row]

    def flip(self, position: int) -> None:
        """Change one bit at a position of the file."""
        data = bytearray(self.file.read_bytes())
        data[position] ^= 1
        self.file.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "fields"),
    [
        (8, {"body_crc"}),
        (19, {"flag"}),
        (27, {"missing"}),
        (35, set()),
        (39, {"sys_flag"}),
        (47, {"born_timestamp_ms"}),
        (49, {"born_host"}),
        (63, {"store_timestamp_ms"}),
        (65, {"store_host"}),
        (75, {"reconsume_times"}),
        (88, set()),
    ],
)
def test_a_changed_byte_of_a_record_is_found(pair: Pair, position: int, fields: set[str]) -> None:
    """A changed body keeps its stored CRC, and the place of a record is not part of a message: both
    are findings of the audit instead.
    """
    one, two = pair
    record = RecordInFile.of(two)
    record.flip(record.start + position)
    certificate = certificate_of(one, two)
    (comparison,) = certificate.comparisons
    assert {difference.field for difference in comparison.differences} == fields
    assert not certificate.is_equal
    if fields:
        first = comparison.differences[0]
        assert (first.topic, first.queue_offset) == (record.topic, record.queue_offset)
    else:
        name = "RECORD_BODY_CRC" if position == 88 else "RECORD_PLACE"
        assert certificate.subjects[1].findings == {name: 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["TOTALSIZE", "MAGIC", "QUEUEID", "PREPARED"]
    + ["BODYLENGTH", "TOPICLENGTH", "TOPIC", "PROPERTIESLENGTH"],
)
def test_a_changed_byte_of_the_structure_of_a_record_is_found(pair: Pair, name: str) -> None:
    """These fields frame a record or lead to its message."""
    one, two = pair
    record = RecordInFile.of(two)
    properties, start = record.scan.properties_position[record.row], record.start
    topic = properties - 2 - len(record.topic)
    places = {
        "TOTALSIZE": start + 3,
        "MAGIC": start + 7,
        "QUEUEID": start + 15,
        "PREPARED": start + 83,
        "BODYLENGTH": start + 87,
        "TOPICLENGTH": topic - 1,
        "TOPIC": topic,
        "PROPERTIESLENGTH": properties - 1,
    }
    record.flip(places[name])
    certificate = certificate_of(one, two)
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    different = {(each.topic, each.queue_offset) for each in comparison.differences}
    assert (record.topic, record.queue_offset) in different


def test_a_changed_property_is_found(pair: Pair) -> None:
    one, two = pair
    record = RecordInFile.of(two)
    scan, row = record.scan, record.row
    record.flip(scan.properties_position[row] + scan.properties_length[row] - 1)
    certificate = certificate_of(one, two)
    assert [d.field for d in certificate.comparisons[0].differences] == ["properties"]
    assert not certificate.is_equal


def test_a_changed_unit_is_found(pair: Pair) -> None:
    one, two = pair
    file = sorted((two / "consumequeue/Normal/0").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20 * 4 + 7] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(one, two)
    assert not certificate.is_equal
    assert certificate.subjects[1].by_queue == 278
    assert certificate.subjects[1].first_findings[0]["code"] == "UNIT_WRONG"
    assert certificate.subjects[1].first_findings[0]["queue_offset"] == 4


def test_a_changed_key_and_a_changed_table_are_found(pair: Pair) -> None:
    one, two = pair
    file = sorted((two / "index").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[40 + 400 + 20 * 5 + 3] ^= 1
    file.write_bytes(data)
    table = two / "config/consumerOffset.json"
    table.write_text(re.sub(r":(\d+)", lambda m: f":{int(m[1]) + 1}", table.read_text(), count=1))
    certificate = certificate_of(one, two)
    assert certificate.subjects[1].keys_found == 442
    assert certificate.comparisons[0].tables == ("consumerOffset.json",)


def test_messages_of_unavailable_stores_are_undecided(store_of: Callable[[str], Path]) -> None:
    before, after = store_of("B-master-slave-v497/master"), store_of("C-upgraded-v497/n0")
    certificate = certificate_of(before, after, files=False)
    (comparison,) = certificate.comparisons
    assert not certificate.is_equal
    assert comparison.missing == comparison.different == 0
    assert comparison.same + comparison.undecided == 279
    assert certificate_of(before, before, files=False).is_equal


def test_a_certificate_is_decoded_and_its_signature_checked(pair: Pair) -> None:
    certificate = certificate_of(*pair)
    raw = certificate.encode(b"key of the operator")
    assert Certificate.decode(raw) == certificate
    assert check_signature(raw, b"key of the operator")
    assert not check_signature(raw, b"another")
    assert not check_signature(certificate.encode(), b"key of the operator")
    tree = json.loads(raw)
    assert tree["equal"] is True
    tree["comparisons"][0]["missing"] = 1
    assert not check_signature(json.dumps(tree).encode(), b"key of the operator")


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b'{"kind":"x","format":1}', b'{"kind":"rmqpy-certificate","format":1}'],
)
def test_an_invalid_certificate_is_refused(raw: bytes) -> None:
    with pytest.raises(RmqError, match="certificate"):
        Certificate.decode(raw)


def switched_store(copy_of: Callable[[str], Path]) -> Path:
    """Return n0 after the switch, in a folder with the name of the master before it."""
    store = copy_of("C-upgraded-v497/n0")
    return store.rename(store.parent / "master")


@pytest.mark.slow
def test_a_store_may_have_the_name_of_an_earlier_manifest(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path]
) -> None:
    """The messages of the earlier manifest are not read from the directory with that name."""
    certificate = certificate_of(
        store_of("B-master-slave-v497/master"), switched_store(copy_of), earlier=1
    )
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.undecided, comparison.more) == (279, 0, 281)
    assert certificate.is_equal


@pytest.mark.slow
def test_a_change_since_an_earlier_manifest_is_found(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path]
) -> None:
    now = switched_store(copy_of)
    record = RecordInFile.of(now)
    record.flip(record.start + 63)
    certificate = certificate_of(store_of("B-master-slave-v497/master"), now, earlier=1)
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert comparison.same + comparison.undecided == 279
    (difference,) = comparison.differences
    assert (difference.topic, difference.field) == (record.topic, "bucket")


def test_empty_stores_prove_nothing(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    empty = [tmp_path / "one", tmp_path / "two"]
    for folder in empty:
        (folder / "commitlog").mkdir(parents=True)
    certificate = certificate_of(*empty)
    assert not certificate.is_equal and certificate.verdict == "NOTHING COMPARED"
    full = store_of("B-master-slave-v497/master")
    assert certificate_of(empty[0], full, earlier=1).verdict == "NOTHING COMPARED"
    assert certificate_of(empty[0], full).verdict == "NOT EQUAL"
    assert certificate_of(full, empty[0]).verdict == "NOT EQUAL"


def test_messages_without_a_queue_offset_count_in_either_order(
    store_of: Callable[[str], Path],
) -> None:
    store = manifest_of(store_of("B-master-slave-v497/master"))
    first, *others = store.queues
    longer = evolve(first, unqueued=5, buckets=((-1, 5, 1, 1), *first.buckets))
    more = evolve(store, name="more", queues=(longer, *others))
    for pair in ((store, more), (more, store)):
        certificate = certify(pair, 11)
        (comparison,) = certificate.comparisons
        assert comparison.missing + comparison.more == 5
        assert certificate.verdict == "NOT EQUAL"
