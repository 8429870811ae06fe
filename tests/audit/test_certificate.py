"""The equality certificate: all of a store's messages in another, and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate import Certificate, certify, check_signature
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.scan.directory import read_directory
from rmqpy.codec.backend import scan_records
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem


@pytest.fixture
def certificate_of(manifest_of: Callable[[Path], Manifest]):
    def make(*stores, files=True):
        manifests = [manifest_of(store) for store in stores]
        at_hand = {
            store.name: QueueMessages(OsFileSystem(), read_directory(OsFileSystem(), str(store)))
            for store in stores
            if files
        }
        return certify(manifests, 11, at_hand)

    return make


@pytest.fixture
def pair(copy_of: Callable[[str], Path]):
    return copy_of("B-master-slave-v497/master"), copy_of("B-master-slave-v497/slave")


def test_replicas(pair, certificate_of) -> None:
    certificate = certificate_of(*pair)
    assert certificate.is_equal
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.more, comparison.tables) == (279, 0, ())
    for subject in certificate.subjects:
        assert subject.messages == subject.by_queue == subject.by_id == 279
        assert subject.keys == subject.keys_found == 443


@pytest.mark.slow
def test_before_and_after_a_switch(store_of: Callable[[str], Path], certificate_of) -> None:
    certificate = certificate_of(
        store_of("B-master-slave-v497/master"),
        *(store_of(f"C-upgraded-v497/n{n}") for n in (0, 1, 2)),
    )
    assert certificate.is_equal
    for comparison in certificate.comparisons:
        assert (comparison.same, comparison.moved, comparison.more) == (279, 0, 281)
        assert comparison.tables == ("consumerOffset.json", "delayOffset.json")


def test_a_slave_that_is_behind(store_of: Callable[[str], Path], certificate_of) -> None:
    certificate = certificate_of(
        store_of("B-lagging-slave-v497/master"), store_of("B-lagging-slave-v497/slave")
    )
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.missing, comparison.different) == (291, 70, 0)
    assert comparison.differences[0].field == "missing"


@pytest.mark.slow
def test_a_wrong_upgrade_gives_one_offset_to_two_messages(
    store_of: Callable[[str], Path], certificate_of
) -> None:
    certificate = certificate_of(*(store_of(f"X-gap_same_file-v497/n{n}") for n in (0, 1)))
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert comparison.missing == 6 and comparison.different == 1
    changed = {d.queue_offset for d in comparison.differences if d.field != "missing"}
    assert changed == {32}


def a_record(store):
    file = sorted((store / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    scan = scan_records(memoryview(bytes(data)), int(file.name), dledger=False, check_crc=False)
    return file, data, scan, 25


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
def test_a_changed_byte_of_a_record(pair, certificate_of, position, fields) -> None:
    """A body byte alone keeps its stored CRC, and a place is where the record stands: both show as
    findings of the audit.
    """
    one, two = pair
    file, data, scan, row = a_record(two)
    data[scan.offset[row] - int(file.name) + position] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(one, two)
    (comparison,) = certificate.comparisons
    assert {difference.field for difference in comparison.differences} == fields
    assert not certificate.is_equal
    if fields:
        first = comparison.differences[0]
        assert (first.topic, first.queue_offset) == (
            scan.topic[row].decode(),
            scan.queue_offset[row],
        )
    else:
        name = "RECORD_BODY_CRC" if position == 88 else "RECORD_PLACE"
        assert certificate.subjects[1].findings == {name: 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["TOTALSIZE", "MAGIC", "QUEUEID", "PREPARED"]
    + ["BODYLENGTH", "TOPICLENGTH", "TOPIC", "PROPERTIESLENGTH"],
)
def test_a_changed_byte_that_frames_or_leads(pair, certificate_of, name) -> None:
    """What a record is read by: nothing of it can change unseen."""
    one, two = pair
    file, data, scan, row = a_record(two)
    topic = scan.properties_position[row] - 2 - len(scan.topic[row])
    start = scan.offset[row] - int(file.name)
    places = {
        "TOTALSIZE": start + 3,
        "MAGIC": start + 7,
        "QUEUEID": start + 15,
        "PREPARED": start + 83,
        "BODYLENGTH": start + 87,
        "TOPICLENGTH": topic - 1,
        "TOPIC": topic,
        "PROPERTIESLENGTH": scan.properties_position[row] - 1,
    }
    data[places[name]] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(one, two)
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    wanted = (scan.topic[row].decode(), scan.queue_offset[row])
    assert wanted in {(each.topic, each.queue_offset) for each in comparison.differences}


def test_a_changed_property(pair, certificate_of) -> None:
    one, two = pair
    file, data, scan, row = a_record(two)
    data[scan.properties_position[row] + scan.properties_length[row] - 1] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(one, two)
    assert [d.field for d in certificate.comparisons[0].differences] == ["properties"]
    assert not certificate.is_equal


def test_a_changed_unit(pair, certificate_of) -> None:
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


def test_a_changed_key_and_a_changed_table(pair, certificate_of) -> None:
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


def test_without_the_files_it_says_what_it_cannot_tell(
    store_of: Callable[[str], Path], certificate_of
) -> None:
    before, after = store_of("B-master-slave-v497/master"), store_of("C-upgraded-v497/n0")
    certificate = certificate_of(before, after, files=False)
    (comparison,) = certificate.comparisons
    assert not certificate.is_equal
    assert comparison.missing == comparison.different == 0
    assert comparison.same + comparison.undecided == 279
    assert certificate_of(before, before, files=False).is_equal


def test_its_json_form_and_its_signature(pair, certificate_of) -> None:
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
def test_what_is_no_certificate_is_refused(raw) -> None:
    with pytest.raises(RmqError, match="certificate"):
        Certificate.decode(raw)


def grown(copy_of):
    """n0 after the switch, under the name that the master's manifest of before has."""
    store = copy_of("C-upgraded-v497/n0")
    return store.rename(store.parent / "master")


@pytest.mark.slow
def test_a_manifest_of_before_has_the_name_of_what_it_became(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path], certificate_of
) -> None:
    """Its messages are not those of the directory that has its name now."""
    certificate = certificate_of(store_of("B-master-slave-v497/master"), grown(copy_of))
    (comparison,) = certificate.comparisons
    assert (comparison.same, comparison.undecided, comparison.more) == (279, 0, 281)
    assert certificate.is_equal


@pytest.mark.slow
def test_what_changed_since_a_manifest_of_before_shows(
    store_of: Callable[[str], Path], copy_of: Callable[[str], Path], certificate_of
) -> None:
    now = grown(copy_of)
    file, data, scan, row = a_record(now)
    data[scan.offset[row] - int(file.name) + 63] ^= 1
    file.write_bytes(data)
    certificate = certificate_of(store_of("B-master-slave-v497/master"), now)
    assert not certificate.is_equal
    (comparison,) = certificate.comparisons
    assert comparison.same + comparison.undecided == 279
    (difference,) = comparison.differences
    assert (difference.topic, difference.field) == (scan.topic[row].decode(), "bucket")
