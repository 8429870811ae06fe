"""Servers of file systems that are not on this machine's disk: S3, GCS, and HDFS."""

from __future__ import annotations

import getpass
import logging
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from attrs import frozen
from foreign_clients.maven import java_program, missing

from rmqpy.audit.remote.object_store import ObjectStore
from rmqpy.testing.blocking_connection import connect_when_ready
from rmqpy.testing.ports import free_port_block

BUCKET: Final = "backups"
S3_KEYS: Final = {"key": "tester", "secret": "of-the-tester"}
"""Spark's workers may have been started without them in their environment."""
HDFS: Final = (
    "org.apache.hadoop:hadoop-client-minicluster:3.4.2",
    "javax.xml.bind:jaxb-api:2.3.1",
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
    "org.mockito:mockito-core:4.11.0",
)


@frozen
class Place:
    """A folder on a server, and the options of fsspec's driver."""

    root: str
    options: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        given = self.options.items()
        return [word for name, value in given for word in ("--storage-option", f"{name}={value}")]

    def uri(self) -> str:
        """Return a URI below the folder that nothing has."""
        return f"{self.root}/{uuid4().hex}"

    def opened(self, uri: str) -> ObjectStore:
        return ObjectStore(uri, self.options)

    def uploaded(self, folder: Path) -> str:
        """Copy a folder, and return its URI."""
        uri = self.uri()
        store = self.opened(uri)
        store.names()
        paths = [path for path in folder.rglob("*") if path.is_file()]
        names = [str(path.relative_to(folder)) for path in paths]
        with ThreadPoolExecutor(16) as pool:  # HDFS takes a third of a second a file, idle
            list(pool.map(store.put_file, map(str, paths), names))
        return uri

    def rows(self, uri: str) -> list[dict[str, Any]]:
        """Return the rows of all Parquet files below a URI in the order of the log."""
        from pyarrow import parquet

        store, found = self.opened(uri), list[dict[str, Any]]()
        for name in store.names():
            if name.endswith(".parquet"):
                with store.opened_file(name) as file:
                    found += parquet.read_table(file).to_pylist()
        return sorted(found, key=lambda row: int(row["physicalOffset"]))


@contextmanager
def s3() -> Iterator[Place]:
    """Run a server of S3 (moto)."""
    if find_spec("moto") is None or find_spec("s3fs") is None:
        pytest.skip("moto or s3fs is not installed; pip install 'moto[server]' s3fs")
    server = import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", S3_KEYS["key"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", S3_KEYS["secret"])
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        # The server is in this process, and its log is not that of the command.
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        server.start()
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}"}
        import_module("s3fs").S3FileSystem(**options).makedirs(BUCKET, exist_ok=True)
        yield Place(f"s3://{BUCKET}", options)
        server.stop()


@contextmanager
def gcs() -> Iterator[Place]:
    """Run a server of Google Cloud Storage (fake-gcs-server)."""
    server = shutil.which("fake-gcs-server")
    if server is None or find_spec("gcsfs") is None:
        pytest.skip(
            "fake-gcs-server or gcsfs is not installed; pip install gcsfs, go install"
            " github.com/fsouza/fake-gcs-server@latest"
        )
    port = free_port_block().first
    words = ["-scheme", "http", "-host", "127.0.0.1", "-port", f"{port}", "-backend", "memory"]
    process = subprocess.Popen([server, *words], stderr=subprocess.DEVNULL)
    try:
        connect_when_ready(f"127.0.0.1:{port}").close()
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon"}
        with pytest.MonkeyPatch.context() as patch:
            # gcsfs reads it when it is imported. With it, it asks Google's servers over gRPC.
            patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
            system = import_module("gcsfs").GCSFileSystem(**options)
        system.mkdir(BUCKET)
        yield Place(f"gs://{BUCKET}", options)
    finally:
        process.kill()
        process.wait()


@contextmanager
def hdfs(folder: Path) -> Iterator[tuple[Place, Place]]:
    """Run a name node and a data node of HDFS below ``folder``; return the place as hdfs-native and
    as WebHDFS reach it.
    """
    if (reason := missing()) is not None or find_spec("hdfs_native") is None:
        pytest.skip(reason or "hdfs-native is not installed; pip install hdfs-native")
    command = java_program("hdfs", HDFS, [Path(__file__).parent / "hdfs"])
    process = subprocess.Popen(
        [*command, "Hdfs", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process, pytest.MonkeyPatch.context() as patch:
        assert process.stdin is not None
        assert process.stdout is not None
        native, web = process.stdout.readline().split()
        user = getpass.getuser()
        patch.setenv("HADOOP_USER_NAME", user)
        yield (
            Place(f"hdfs://localhost:{native}", {}),
            Place(f"webhdfs://localhost:{web}", {"user": user}),
        )
        process.stdin.close()
