"""The offset file of a broadcasting consumer: Java's format, and the backup of the last version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rmqpy.client.consuming.local_offsets import LocalOffsets
from rmqpy.model.errors import StoreError
from rmqpy.remoting.bodies import MessageQueue

QUEUE = MessageQueue("T", "a", 3)


def test_without_a_file_there_are_no_offsets(tmp_path: Path) -> None:
    assert LocalOffsets(tmp_path, "i", "G").load() == {}


def test_the_file_has_javas_format_and_path(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "10.0.0.1@i", "G")
    offsets.save({QUEUE: 7})
    path = tmp_path / "10.0.0.1@i" / "G" / "offsets.json"
    assert (
        path.read_bytes() == (b'{"offsetTable":{{"topic":"T","brokerName":"a","queueId":3}:7}}')
        or path.read_bytes() == b'{"offsetTable":{{"brokerName":"a","queueId":3,"topic":"T"}:7}}'
    )
    assert offsets.load() == {QUEUE: 7}


def test_a_file_of_java_is_read(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "i", "G")
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"a",\n\t\t\t"queueId":3,\n\t\t\t"topic":"T"\n'
        "\t\t}:7\n\t}\n}"
    )
    assert offsets.load() == {QUEUE: 7}


def test_a_torn_file_falls_back_to_its_backup(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "i", "G")
    offsets.save({QUEUE: 7})
    offsets.save({QUEUE: 9})
    assert offsets.load() == {QUEUE: 9}
    offsets.path.write_bytes(offsets.path.read_bytes()[:20])
    assert offsets.load() == {QUEUE: 7}


def test_without_a_readable_file_the_error_names_what_to_remove(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "i", "G")
    offsets.save({QUEUE: 7})
    offsets.path.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"offsets\.json: .*remove both") as error:
        offsets.load()
    found = re.search(r"remove both \((\S+) and (\S+)\)", error.value.remedy)
    assert found is not None
    for path in found.groups():
        Path(path).unlink(missing_ok=True)
    assert offsets.load() == {}
