"""Write the stores of this version, once for each release:
``PYTHONPATH=tests python tests/golden/released/write.py``.

Unlike the golden stores of Java, these show that a later version reads what this one has written.
``VERSION.tar.xz`` has the folders ``classic-killed`` (a broker that was killed) and ``joined`` (the
same store after its switch to DLedger and a clean stop); ``VERSION.json.xz`` has the messages of
each as a consumer received them, and the settings.
"""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness.released import described

from rmqpy import __version__
from rmqpy.testing import Broker

HERE = Path(__file__).parent
SETTINGS = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "maxMessageSize": "32768",
}
TOPICS = ("Orders", "Invoices")


def contents(broker: Broker) -> list[dict[str, Any]]:
    return [described(message) for topic in TOPICS for message in broker.messages(topic)]


def fill(broker: Broker, name: str) -> None:
    for number in range(150):
        body = f"{name} {number} ".encode() * (1 + number % 40)
        broker.send("Orders", body, keys=f"{name}-{number}", tags=f"t{number % 3}")
    broker.send("Invoices", "Größe".encode() * 2000, properties={"kind": "compressed"})
    broker.send("Invoices", b"later", delay_level=18)


def write(root: Path) -> dict[str, Any]:
    stores: dict[str, Any] = {}
    with Broker(
        root=root / "work", topics=[f"{topic}:2" for topic in TOPICS], settings=SETTINGS
    ) as broker:
        fill(broker, "classic")
        stores["classic-killed"] = contents(broker)
        broker.kill()
        shutil.copytree(broker.store, root / "classic-killed")
    shutil.copytree(root / "classic-killed", root / "joined")
    with Broker(dledger=True, stores={"broker": root / "joined"}, settings=SETTINGS) as broker:
        fill(broker, "dledger")
        stores["joined"] = contents(broker)
    return {"version": __version__, "settings": SETTINGS, "stores": stores}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = write(root)
        names = sorted(manifest["stores"])
        sparse = [
            "tar",
            "--sparse",
            "--sort=name",
            "--exclude=lock",
            "-C",
            folder,
            "-cf",
            "-",
            *names,
        ]
        archive = subprocess.run(sparse, capture_output=True, check=True).stdout
        (HERE / f"{__version__}.tar.xz").write_bytes(lzma.compress(archive))
        text = json.dumps(manifest, ensure_ascii=False).encode()
        (HERE / f"{__version__}.json.xz").write_bytes(lzma.compress(text))


if __name__ == "__main__":
    main()
