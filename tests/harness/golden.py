"""The golden stores, which the Java broker wrote (tests/golden/README.md), and their nodes.

The fixtures are in tests/conftest.py. ``golden(name)`` is a folder to read, shared by the whole
run; ``golden_copy(name)`` is a private one to write to; ``store_of`` and ``copy_of`` are the same
for one node of it; ``manifest(name)`` is what a Java consumer received from it. A test that uses
``told_node``, ``clean_node`` or ``golden_node`` runs for every such node. Files stay sparse: the
index files of DLedger stores are 160 MiB each, nearly all of it holes. ``upgrade_commands(part)``
are the commands of a part of docs/how-to/upgrade-a-group.md.
"""

from __future__ import annotations

import io
import lzma
import re
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"

TOLD_NODES = [
    "A-classic-clean-v497",
    "A-classic-clean-v533",
    "A-classic-killed-v497",
    "B-lagging-slave-v497/master",
    "B-lagging-slave-v497/slave",
    "B-master-slave-v497/master",
    "B-master-slave-v497/slave",
    *(f"C-upgraded-{version}/n{number}" for version in ("v497", "v533") for number in range(3)),
    *(f"D-dledger-{version}/n{number}" for version in ("v497", "v533") for number in range(3)),
]
"""Every node whose messages a Java consumer received; the manifest lists them."""

CLEAN_NODES = [*TOLD_NODES, "X-gap_same_file-v497/n0"]
"""Every node without damage."""

GOLDEN_NODES = [*CLEAN_NODES, "X-gap_same_file-v497/n1", "X-gap_same_file-v497/n2"]
"""Every node. The last two have queue offsets that two messages share."""

TLS = Path(__file__).parents[1] / "tls"

UPGRADE_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "upgrade-a-group.md"

SHELL_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def node_folder(folders: Callable[[str], Path], name: str) -> Path:
    """Return the store folder of a node; ``folders`` leads from an archive to its folder."""
    archive, _, node = name.partition("/")
    stores = sorted(path.parent for path in folders(archive).rglob("consumequeue"))
    return next(store for store in stores if not node or store.name == node)


@cache
def _tar(name: str) -> bytes:
    return lzma.decompress((GOLDEN / f"{name}.tar.xz").read_bytes())


def extract(name: str, base: Path) -> Path:
    """Unpack a golden store below ``base``; each archive is decompressed once per process."""
    with tarfile.open(fileobj=io.BytesIO(_tar(name))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4
        archive.extractall(base)
    return base / name
