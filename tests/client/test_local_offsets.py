"""The offset file of a broadcasting consumer: Java's form, its predecessor kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.client.consuming.local_offsets import LocalOffsets
from rmqpy.model.errors import StoreError
from rmqpy.remoting.bodies import MessageQueue

QUEUE = MessageQueue("T", "a", 3)


def test_nothing_there_is_empty(tmp_path: Path) -> None:
    assert LocalOffsets(tmp_path, "i", "G").load() == {}


def test_java_form_and_place(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "10.0.0.1@i", "G")
    offsets.save({QUEUE: 7})
    path = tmp_path / "10.0.0.1@i" / "G" / "offsets.json"
    assert (
        path.read_bytes() == (b'{"offsetTable":{{"topic":"T","brokerName":"a","queueId":3}:7}}')
        or path.read_bytes() == b'{"offsetTable":{{"brokerName":"a","queueId":3,"topic":"T"}:7}}'
    )
    assert offsets.load() == {QUEUE: 7}


def test_what_java_wrote(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "i", "G")
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"a",\n\t\t\t"queueId":3,\n\t\t\t"topic":"T"\n'
        "\t\t}:7\n\t}\n}"
    )
    assert offsets.load() == {QUEUE: 7}


def test_a_cut_file_falls_back_to_the_one_before(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "i", "G")
    offsets.save({QUEUE: 7})
    offsets.save({QUEUE: 9})
    assert offsets.load() == {QUEUE: 9}
    offsets.path.write_bytes(offsets.path.read_bytes()[:20])
    assert offsets.load() == {QUEUE: 7}


def test_nothing_readable_is_a_fault_that_names_the_file(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "i", "G")
    offsets.save({QUEUE: 7})
    offsets.path.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"offsets\.json: .*remove both"):
        offsets.load()
