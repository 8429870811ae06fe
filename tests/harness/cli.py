"""Brokers that are started by the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def write_broker_conf(folder: Path, port: int, **settings: str) -> Path:
    """Write broker.conf for a small broker on ``port`` and return its path.

    The store is in ``folder`` unless ``settings`` has another one.
    """
    lines = {
        "brokerName": "cli-broker",
        "listenPort": str(port),
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    } | settings
    path = folder / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def start_process(arguments: list[str]) -> subprocess.Popen[str]:
    """Start ``rmqpy`` with ``arguments``."""
    return subprocess.Popen(
        [sys.executable, "-m", "rmqpy.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NAMESRV_ADDR": ""},
    )
