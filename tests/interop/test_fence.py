"""``rmqpy admin fence`` with a Java broker: its write permission is taken, and given back."""

from __future__ import annotations

import json

import pytest
from harness.interop import InteropServers

from rmqpy.cli import main
from rmqpy.testing.blocking_connection import connect_when_ready, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec

pytestmark = pytest.mark.interop


def test_a_java_broker_has_no_fence(
    servers: InteropServers, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = servers.namesrv("java", "fence-names")
    spec = BrokerSpec(port=servers.block(BROKER_PORT_COUNT).broker_port, namesrv=namesrv.address)
    broker = servers.take(servers.site("java").broker("fence-broker", spec).start())
    line = ["admin", "fence", "-n", namesrv.address, "-b", broker.address, "--format", "json"]
    with connect_when_ready(broker.address) as connection:
        assert connection.call(send_request("TBW102", 0, [b"before"])).code == 0
        assert main(line) == 1
        assert "found a Java broker, expected rmqpy" in capsys.readouterr().out
        conf = broker.directory / "conf" / "broker.conf"
        assert main([*line, "--java", "--quiet", "1"]) == 0
        (member,) = json.loads(capsys.readouterr().out)["members"]
        assert member["role"] == "java" and member["end"] > 0
        assert "brokerPermission=4" in conf.read_text(), "Java keeps it"
        assert main([*line, "--lift", "--java"]) == 0
        assert "brokerPermission=6" in conf.read_text()
        assert connection.call(send_request("TBW102", 0, [b"after"])).code == 0
