"""What deploy/test-broker runs in its container, run without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, connect_when_ready, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "deploy" / "test-broker"
SECONDS_MAX = 60


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """The process, and the addresses of its name server and its broker."""
    block = free_port_block(BROKER_PORT_COUNT + 1)
    names, broker = str(block.first + BROKER_PORT_COUNT), str(block.broker_port)
    environment = {
        **os.environ,
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
        "NAMESRV_PORT": names,
        "BROKER_PORT": broker,
        "TMPDIR": str(tmp_path),
    }
    process = subprocess.Popen([str(SCRIPT)], cwd=tmp_path, env=environment, start_new_session=True)
    try:
        yield process, f"127.0.0.1:{names}", f"127.0.0.1:{broker}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_clients_find_the_broker_and_sigterm_leaves_nothing(
    container: tuple[subprocess.Popen[bytes], str, str], tmp_path: Path
) -> None:
    process, names, broker = container
    with connect_when_ready(broker, SECONDS_MAX) as connection:
        assert connection.call(send_request("TBW102", 0, [b"1"])).code == ResponseCode.SUCCESS
    deadline = time.monotonic() + SECONDS_MAX
    with connect_when_ready(names, SECONDS_MAX) as connection:
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        while broker.encode() not in connection.call(request).body:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS_MAX) == 0
    assert not [*tmp_path.iterdir()]
    for address in (names, broker):
        with pytest.raises(NetworkError):
            BlockingConnection(address)
