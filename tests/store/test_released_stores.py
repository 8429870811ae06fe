"""Stores that released versions of rmqpy have written, opened by this one
(tests/golden/released/write.py).
"""

from __future__ import annotations

import io
import json
import lzma
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from harness.golden import GOLDEN
from harness.released import described

import rmqpy
from rmqpy.cli import main
from rmqpy.testing import Broker

RELEASED = GOLDEN / "released"
VERSIONS = sorted(path.name.removesuffix(".json.xz") for path in RELEASED.glob("*.json.xz"))
DELAYED = b"later".hex()
"""Sent with a delay of two hours, which has passed: the broker delivers it soon after its start."""
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def number_of(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_every_released_version_has_a_store() -> None:
    headings = re.findall(r"^## \[?(\d+\.\d+\.\d+)", CHANGELOG.read_text("utf-8"), re.MULTILINE)
    before = {each for each in headings if number_of(each) < number_of(rmqpy.__version__)}
    assert VERSIONS and before <= set(VERSIONS), "tests/golden/released/write.py writes one"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classic-killed", "joined"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_a_released_version_opens(
    version: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads(lzma.decompress((RELEASED / f"{version}.json.xz").read_bytes()))
    packed = lzma.decompress((RELEASED / f"{version}.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4
        archive.extractall(tmp_path)
    store, settings = tmp_path / name, manifest["settings"]
    given: dict[str, Any] = {"stores": {"broker": store}, "settings": settings}
    expected = manifest["stores"][name]
    assert len(expected) > 150
    assert main(["store", "fsck", str(store)]) == 0, capsys.readouterr().out
    with Broker(dledger=name == "joined", **given) as broker:
        topics = dict.fromkeys(message["topic"] for message in expected)
        found = [described(message) for topic in topics for message in broker.messages(topic)]
        assert [message for message in found if message["body"] != DELAYED] == expected
        sent = broker.send("Orders", b"new", keys="new")
        ends = [
            message["queueOffset"]
            for message in expected
            if (message["topic"], message["queue"]) == ("Orders", sent.queue.queue_id)
        ]
        assert sent.queue_offset == max(ends) + 1
    assert main(["store", "fsck", str(store)]) == 0, capsys.readouterr().out
