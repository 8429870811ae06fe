"""Tests of the equality certificate: the messages of one store that are, or are not, in another."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve
from harness.audit import directory_of, manifest_of

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate import Certificate, check_signature, signature_of
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.replicas.message_comparison import MessageSummer
from rmqpy.audit.replicas.verdict import DIFFERENT, EQUAL, NOTHING_COMPARED, Containment, Word
from rmqpy.cli import main
from rmqpy.codec.backend import scan_records
from rmqpy.codec.scan import Scan
from rmqpy.model.errors import RmqError
from rmqpy.model.names import LEADER_MARKER_TOPIC
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
    assert certificate.holds
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
    assert certificate.holds and certificate.verdict.word is Word.CONTAINED
    assert str(certificate.verdict) == (
        "CONTAINED: master in n0, n1, n2, which have 281 messages more"
    )
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
    assert not certificate.holds
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.missing, comparison.different) == (291, 70, 0)
    assert comparison.differences[0].field == "missing"
    *_, keyed, normal, _, verdict = certificate_lines(certificate)
    assert keyed.startswith("  10 messages missing in slave: topic Keyed, queue 0 offset 20 to 24,")
    assert normal.startswith("  60 messages missing in slave: topic Normal, queue 0 offset 33 to")
    assert verdict == "CONTAINED: slave in master, which has 70 messages more"


@define
class OnAnotherHost:
    """A store that only sums its messages."""

    messages: QueueMessages

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int, int, int]:
        return self.messages.sums(topic, queue_id, first, end)


@pytest.mark.parametrize("remote", [("slave",), ("master",), ("master", "slave")])
def test_a_slave_that_lags_is_contained_also_on_another_host(
    store_of: Callable[[str], Path], remote: tuple[str, ...]
) -> None:
    stores = [store_of(f"B-lagging-slave-v497/{name}") for name in ("master", "slave")]
    available: dict[str, MessageSummer] = {}
    for store in stores:
        messages = QueueMessages(OsFileSystem(), directory_of(store))
        available[store.name] = OnAnotherHost(messages) if store.name in remote else messages
    certificate = certify([manifest_of(store) for store in stores], 11, available)
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.missing, comparison.undecided) == (291, 70, 0)
    assert certificate.verdict.word is Word.CONTAINED


def test_the_order_of_the_stores_does_not_change_the_verdict(
    store_of: Callable[[str], Path],
) -> None:
    master = store_of("B-lagging-slave-v497/master")
    slave = store_of("B-lagging-slave-v497/slave")
    certificate = certificate_of(slave, master)
    assert not certificate.holds
    assert certificate.comparisons == certificate_of(master, slave).comparisons
    assert certificate.verdict == certificate_of(master, slave).verdict
    assert certificate.verdict.contained == (Containment("slave", "master", 70),)
    assert Certificate.decode(certificate.encode()) == certificate
    contained = certificate_of(slave, master, earlier=1)
    assert contained.holds and contained.verdict == certificate.verdict
    assert not certificate_of(master, slave, earlier=1).holds


@pytest.mark.slow
def test_a_wrong_upgrade_gives_one_offset_to_two_messages(store_of: Callable[[str], Path]) -> None:
    certificate = certificate_of(*(store_of(f"X-gap_same_file-v497/n{n}") for n in (0, 1)))
    assert certificate.verdict == DIFFERENT
    (comparison,) = certificate.comparisons
    assert (comparison.reference, comparison.other) == ("n1", "n0"), "the log of n1 ends last"
    assert (comparison.missing, comparison.more, comparison.different) == (7, 4, 1)
    (changed,) = (each for each in comparison.differences if each.field == "message")
    assert (changed.topic, changed.queue_id, changed.queue_offset) == ("Normal", 0, 32)
    lines = list(certificate_lines(certificate))
    assert sum("another message in n0 than in n1: topic Normal" in line for line in lines) == 1


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
    assert not certificate.holds
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
    assert not certificate.holds
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
    assert not certificate.holds


def test_a_changed_unit_is_found(pair: Pair) -> None:
    one, two = pair
    file = sorted((two / "consumequeue/Normal/0").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20 * 4 + 7] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(one, two)
    assert not certificate.holds
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
    assert certificate.verdict == DIFFERENT
    assert certificate.subjects[1].keys_found == 442
    assert certificate.comparisons[0].tables == ("consumerOffset.json",)


def test_messages_of_unavailable_stores_are_undecided(store_of: Callable[[str], Path]) -> None:
    before, after = store_of("B-master-slave-v497/master"), store_of("C-upgraded-v497/n0")
    certificate = certificate_of(before, after, files=False)
    (comparison,) = certificate.comparisons
    assert certificate.verdict == DIFFERENT
    assert (comparison.reference, comparison.different) == ("n0", 0), "its log ends last"
    assert comparison.same + comparison.undecided + comparison.missing == 560
    assert certificate_of(before, before, files=False).holds


def test_a_certificate_is_decoded_and_its_signature_checked(pair: Pair) -> None:
    certificate = certificate_of(*pair)
    raw = certificate.encode(b"key of the operator")
    assert Certificate.decode(raw) == certificate
    assert check_signature(raw, b"key of the operator")
    assert not check_signature(raw, b"another")
    assert not check_signature(certificate.encode(), b"key of the operator")
    tree = json.loads(raw)
    assert (tree["holds"], tree["verdict"], tree["format"]) == (True, "EQUAL", 5)
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
    assert certificate.holds


@pytest.mark.slow
def test_a_change_since_an_earlier_manifest_is_found(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path]
) -> None:
    now = switched_store(copy_of)
    record = RecordInFile.of(now)
    record.flip(record.start + 63)
    certificate = certificate_of(store_of("B-master-slave-v497/master"), now, earlier=1)
    assert not certificate.holds
    (comparison,) = certificate.comparisons
    assert comparison.same + comparison.undecided == 279
    (difference,) = comparison.differences
    assert (difference.topic, difference.field) == (record.topic, "bucket")


def test_empty_stores_prove_nothing(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    empty = [tmp_path / "one", tmp_path / "two"]
    for folder in empty:
        (folder / "commitlog").mkdir(parents=True)
    full = store_of("B-master-slave-v497/master")
    for stores in (empty, [empty[0], full], [full, empty[0]]):
        certificate = certificate_of(*stores)
        assert not certificate.holds and certificate.verdict == NOTHING_COMPARED
    assert certificate_of(empty[0], full, earlier=1).verdict == NOTHING_COMPARED
    assert certify([manifest_of(full)], 11).verdict == NOTHING_COMPARED


def test_messages_without_a_queue_offset_count_in_either_order(
    store_of: Callable[[str], Path],
) -> None:
    store = manifest_of(store_of("B-master-slave-v497/master"))
    first, *others = store.queues
    longer = evolve(first, unqueued=5, buckets=((-1, 5, 1, 1, 1), *first.buckets))
    more = evolve(store, name="more", queues=(longer, *others))
    for pair in ((store, more), (more, store)):
        certificate = certify(pair, 11)
        (comparison,) = certificate.comparisons
        assert comparison.missing + comparison.more == 5
        assert not certificate.holds


def test_a_classic_slave_may_lack_the_last_markers_of_a_leader(
    store_of: Callable[[str], Path],
) -> None:
    store = manifest_of(store_of("B-master-slave-v497/master"))

    def with_markers(*bucket: int) -> Manifest:
        markers = evolve(
            store.queues[0],
            topic=LEADER_MARKER_TOPIC,
            queue_id=0,
            count=0,
            right_units=0,
            min_offset=0,
            max_offset=0,
            unqueued=bucket[0],
            buckets=((-1, bucket[0], bucket[1], bucket[1], bucket[1]),),
        )
        return evolve(store, name=f"{bucket[0]} markers", queues=(*store.queues, markers))

    two = with_markers(2, 20)
    for other in (store, with_markers(1, 10)):
        for pair in ((two, other), (other, two)):
            certificate = certify(pair, 11)
            assert certificate.holds and certificate.verdict == EQUAL
            assert any("markers of DLedger leaders" in each for each in certificate.not_examined)
    assert not certify((two, with_markers(2, 30)), 11).holds, "as many, but others"


def test_a_key_that_is_not_found_makes_stores_different(pair: Pair) -> None:
    one, two = pair
    file = sorted((two / "index").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[40 + 400 + 20 * 5 + 3] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(one, two)
    assert certificate.verdict == DIFFERENT
    assert "KEY_MISSING, once: a message that is not found by its key" in text_of(certificate)


def text_of(certificate: Certificate) -> str:
    return "\n".join(certificate_lines(certificate))


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_index_file_makes_stores_different(pair: Pair, number: int) -> None:
    one, two = pair
    sorted((two / "index").iterdir())[number].unlink()
    certificate = certificate_of(one, two)
    assert certificate.verdict == DIFFERENT
    assert "are found by their keys in only one store" in text_of(certificate)


def test_a_missing_index_makes_stores_different(pair: Pair) -> None:
    one, two = pair
    shutil.rmtree(two / "index")
    certificate = certificate_of(one, two)
    assert certificate.verdict == DIFFERENT
    assert certificate.subjects[1].findings == {"KEYS_NOT_INDEXED": 1}
    assert (certificate.subjects[1].keys, certificate.subjects[1].keys_found) == (443, 0)


def change_table(store: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a table of the store and its backup."""
    for path in (store / "config" / name, store / "config" / f"{name}.bak"):
        # The broker writes numbers as keys, which JSON does not allow.
        text = re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', path.read_text())
        tree = json.loads(text)
        change(tree)
        path.write_text(json.dumps(tree))


TABLE_FAULTS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("topics.json", lambda tree: tree["topicConfigTable"].pop("Keyed"), "slave lacks Keyed"),
    (
        "topics.json",
        lambda tree: tree["topicConfigTable"]["Keyed"].update(readQueueNums=1),
        "the configuration of Keyed differs",
    ),
    (
        "subscriptionGroup.json",
        lambda tree: tree["subscriptionGroupTable"].clear(),
        "slave lacks CID_",
    ),
    (
        "consumerOffset.json",
        lambda tree: tree["offsetTable"]["Normal@CID_push"].update({"0": 999}),
        "slave has 1 impossible offset: CID_push in Normal queue 0 is 999, the queue ends at 30",
    ),
    (
        "delayOffset.json",
        lambda tree: tree["offsetTable"].update({"1": 8}),
        "slave has 1 impossible offset: level 1 is 8, the queue ends at 7",
    ),
]


@pytest.mark.parametrize(("name", "change", "sentence"), TABLE_FAULTS)
def test_a_table_with_other_content_makes_stores_different(
    pair: Pair, name: str, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    one, two = pair
    change_table(two, name, change)
    for stores in ((one, two), (two, one)):
        certificate = certificate_of(*stores)
        assert certificate.verdict == DIFFERENT
        assert f"{name}: " in text_of(certificate) and sentence in text_of(certificate)
        assert Certificate.decode(certificate.encode()) == certificate


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json"])
def test_a_missing_table_makes_stores_different(pair: Pair, name: str) -> None:
    one, two = pair
    for path in (two / "config").glob(f"{name}*"):
        path.unlink()
    assert certificate_of(one, two).verdict == DIFFERENT


@pytest.mark.slow
def test_a_table_that_went_back_since_an_earlier_state_is_found(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path]
) -> None:
    now = switched_store(copy_of)
    change_table(now, "delayOffset.json", lambda tree: tree["offsetTable"].update({"1": 3}))
    certificate = certificate_of(store_of("B-master-slave-v497/master"), now, earlier=1)
    assert certificate.verdict == DIFFERENT and "level 1 is 3, not 7" in text_of(certificate)


def expire(store: Path) -> Path:
    """Remove the first file of the log, as the cleaning of a broker does."""
    sorted((store / "commitlog").iterdir())[0].unlink()
    return store


def test_expired_messages_are_contained_in_either_order(pair: Pair) -> None:
    """Both orders report the same messages: those that only one store still has."""
    one, two = pair
    expire(two)
    for stores in ((one, two), (two, one)):
        certificate = certificate_of(*stores)
        (comparison,) = certificate.comparisons
        expired = comparison.expired + comparison.expired_in_reference
        assert expired > 50 and comparison.same + expired == 279
        assert certificate.verdict.contained == (Containment("slave", "master", expired),)
        assert f"{expired} messages of master expired in slave" in text_of(certificate)
    certificate = certificate_of(one, two, earlier=1)
    assert certificate.holds and certificate.comparisons[0].expired == expired
    assert certificate.verdict.contained == (Containment("slave", "master", expired),)


def test_a_pointer_to_a_half_message_is_compared_without_files(pair: Pair) -> None:
    """The sums of positions show it, although nothing but the sums is known of one store."""
    one, two = pair
    record = RecordInFile.of(two)
    record.flip(record.start + 83)
    certificate = certificate_of(one, two, files=False)
    assert certificate.verdict == DIFFERENT
    (group,) = certificate.comparisons[0].groups
    assert (group.topic, group.field) == (record.topic, "physical_offset")


def test_a_certificate_of_format_1_is_read(pair: Pair) -> None:
    """It proves what it did then: nothing about tables, and nothing about keys."""
    one, two = pair
    (two / "config/topics.json").unlink()
    (two / "config/topics.json.bak").unlink()
    tree = json.loads(certificate_of(one, two).encode())
    del tree["not_examined"], tree["holds"], tree["verdict"], tree["contained"]
    for subject in tree["subjects"]:
        for name in ("key_holes", "uncommitted", "impossible_offsets"):
            del subject[name]
    for comparison in tree["comparisons"]:
        for name in ("expired_in_reference", "uncommitted", "table_differences"):
            del comparison[name]
        del comparison["key_holes"], comparison["groups"]
    tree |= {"format": 1, "equal": True}
    tree["signature"] = signature_of(tree, b"secret")
    raw = json.dumps(tree).encode()
    certificate = Certificate.decode(raw)
    assert certificate.holds and certificate.verdict == EQUAL and check_signature(raw, b"secret")


def test_a_manifest_of_format_1_is_compared_as_far_as_it_goes(pair: Pair) -> None:
    one, two = pair
    tree = json.loads(manifest_of(one).encode())
    del tree["contents"], tree["key_holes"], tree["uncommitted"]
    for queue in tree["queues"]:
        queue["buckets"] = [bucket[:4] for bucket in queue["buckets"]]
    tree["format"] = 1
    before = Manifest.decode(json.dumps(tree).encode())
    assert before.content_digest(1) == manifest_of(one).content_digest(1)
    certificate = certify([before, manifest_of(two)], 11, earlier=1)
    assert certificate.holds and certificate.verdict == EQUAL
    assert "master: its manifest has format 1" in text_of(certificate)


@pytest.fixture
def uncommitted(copy_of: Callable[[str], Path]) -> Path:
    """Return a member that was stopped cleanly before it knew that its last entry is committed."""
    store = copy_of("C-upgraded-v497/n0")
    checkpoint = store / "dledger-n0/checkpoint"
    text = checkpoint.read_text()
    checkpoint.write_text(text.replace("committedIndex=280", "committedIndex=279"))
    last = manifest_of(store).facts["ledger"]["last"]
    queue = store / "consumequeue" / last["topic"] / str(last["queue_id"])
    file, position = divmod(last["queue_offset"] * 20, 2000)
    with (queue / f"{file * 2000:020d}").open("r+b") as stream:
        stream.seek(position)
        assert any(stream.read(20))
        stream.seek(position)
        stream.write(bytes(20))
    return store


@pytest.mark.slow
def test_an_uncommitted_entry_is_no_damage(
    uncommitted: Path, store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "fsck", str(uncommitted)]) == 0
    assert "note     UNIT_UNCOMMITTED dledger-n0/data/" in capsys.readouterr().out
    other = store_of("C-upgraded-v497/n1")
    for stores in ((uncommitted, other), (other, uncommitted)):
        certificate = certificate_of(*stores)
        assert certificate.verdict == EQUAL
        (comparison,) = certificate.comparisons
        assert comparison.same == 560
        assert "1 message of n0 not known to be committed" in text_of(certificate)


@pytest.mark.slow
def test_a_missing_unit_of_an_unclean_stop_is_a_finding(uncommitted: Path) -> None:
    (uncommitted / "abort").touch()
    assert main(["store", "fsck", str(uncommitted)]) == 2
