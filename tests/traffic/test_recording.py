"""The file of a recording: what is written is read, torn ends, damage, and appending."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.model.errors import StoreError
from rmqpy.traffic.recording import RecordingReader, RecordingWriter, RecordKind, TrafficRecord

RECORDS = [
    TrafficRecord(RecordKind.OPENED, 1, 0),
    TrafficRecord(RecordKind.REQUEST, 1, 5, b"\0\0\0\x01a"),
    TrafficRecord(RecordKind.ANSWER, 1, 9, b"\0\0\0\x02bc"),
    TrafficRecord(RecordKind.CLOSED, 1, 10),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.rec"
    with RecordingWriter(path) as writer:
        for record in RECORDS:
            writer.append(record)
    return path


def test_what_is_written_is_read(path: Path) -> None:
    reader = RecordingReader(path)
    assert list(reader) == RECORDS
    assert (reader.end, reader.torn_bytes) == (path.stat().st_size, 0)


def test_every_torn_end_is_left_out_and_cut_off_by_the_next_writer(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(12, len(whole)):
        path.write_bytes(whole[:size])
        reader = RecordingReader(path)
        found = list(reader)
        assert found == RECORDS[: len(found)]
        assert reader.end + reader.torn_bytes == size
        with RecordingWriter(path, append=True) as writer:
            assert writer.begin_us == (found[-1].time_us if found else 0)
            writer.append(RECORDS[-1])
        assert list(RecordingReader(path)) == [*found, RECORDS[-1]]


def test_each_changed_byte_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        try:
            reader = RecordingReader(path)
            found = list(reader)
        except StoreError as error:
            assert str(path) in str(error)
        else:
            assert len(found) < len(RECORDS) and reader.torn_bytes, "at most the end is lost"
            assert found == RECORDS[: len(found)]


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for data, text in [(b"", "expected"), (b"x" * 100, "RMQPYTRF"), (b"RMQPYTRF\0\0\0\x02", "2")]:
        other.write_bytes(data)
        with pytest.raises(StoreError, match=text):
            RecordingReader(other)
    with pytest.raises(FileExistsError):
        RecordingWriter(other)
