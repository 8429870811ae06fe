"""Groups whose master controllers elect, with the answers of a controller of 5.3.3."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from harness.console import CountedBrokers, SetClock, browsing, collecting, page_of

from rmqpy.console.collecting.controller_reader import ControllerReader
from rmqpy.console.views.controllers import ControllerGroup
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand

METADATA = RequestCode.CONTROLLER_GET_METADATA_INFO
SYNC_STATE = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
EPOCHS = RequestCode.GET_BROKER_EPOCH_CACHE
HA_STATUS = RequestCode.GET_BROKER_HA_STATUS
SETTINGS = {"enableControllerMode": "true", "controllerAddr": "c:1;c:2"}
LEADS = {
    "controllerLeaderId": "n0",
    "controllerLeaderAddress": "c:1",
    "peers": "n0:c:1;n1:c:2;",
    "group": "controllers",
}


def answer(tree: Any = None, **header: str) -> RemotingCommand:
    body = b"" if tree is None else json.dumps(tree).encode()
    return RemotingCommand(code=0, body=body, ext_fields=header)


def replica(number: int, *, alive: bool = True) -> dict[str, Any]:
    address = f"x:{number}"
    return {"alive": alive, "brokerAddress": address, "brokerId": number, "brokerName": "a"}


def sync_state(inside: list[Any], outside: list[Any], **more: Any) -> RemotingCommand:
    info = {"inSyncReplicas": inside, "notInSyncReplicas": outside, "syncStateSetEpoch": 2}
    return answer({"replicasInfoTable": {"a": {**info, **more}}})


def epochs(end: int, *starts: int) -> RemotingCommand:
    last = (1 << 63) - 1
    rows = [
        {"epoch": number, "startOffset": start, "endOffset": last}
        for number, start in enumerate(starts, 1)
    ]
    return answer({"brokerId": 0, "epochList": rows, "maxOffset": end})


def ha_status(end: int, *acknowledged: tuple[int, bool]) -> RemotingCommand:
    rows = [
        {"addr": "10.0.0.1:33978", "slaveAckOffset": ack, "inSync": is_in}
        for ack, is_in in acknowledged
    ]
    return answer({"master": True, "masterCommitLogMaxOffset": end, "haConnectionInfo": rows})


def cluster() -> CountedBrokers:
    """Return a master and a slave that lags by 1,000 bytes, below two controllers."""
    return CountedBrokers(
        {("a", 0): "x:1", ("a", 2): "x:2"},
        {"x:1": {}, "x:2": {}},
        settings={"x:1": SETTINGS, "x:2": SETTINGS},
        answers={
            ("c:1", METADATA): answer(**LEADS, isLeader="true"),
            ("c:2", METADATA): answer(**LEADS, isLeader="false"),
            ("c:1", SYNC_STATE): sync_state(
                [replica(1), replica(2)], [], masterAddress="x:1", masterBrokerId=1, masterEpoch=3
            ),
            ("x:1", EPOCHS): epochs(5000, 0, 900),
            ("x:2", EPOCHS): epochs(4000, 0, 900),
            ("x:1", HA_STATUS): ha_status(5000, (4000, True)),
        },
    )


def group_of(brokers: CountedBrokers) -> ControllerGroup:
    async def run() -> ControllerGroup:
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        (found,) = await ControllerReader(collector).groups()
        return found

    return asyncio.run(run())


def test_a_group_has_its_master_epochs_and_confirm_offset() -> None:
    found = group_of(cluster())
    assert (found.master, found.master_epoch, found.sync_epoch, found.confirm) == (
        "x:1",
        3,
        2,
        4000,
    )
    assert [(each.address, each.role) for each in found.controllers] == [
        ("c:1", "leads"),
        ("c:2", "follows"),
    ]
    first, second = found.replicas
    assert (first.role, first.end, first.epochs) == ("master", 5000, [(1, 0), (2, 900)])
    assert (second.role, second.lag, second.in_sync) == ("slave", 1000, True)
    assert found.problems == []


def test_nobody_but_the_lost_replica_may_be_elected() -> None:
    brokers = cluster()
    brokers.answers["c:1", SYNC_STATE] = sync_state([replica(1, alive=False)], [replica(2)])
    found = group_of(brokers)
    assert found.master == "" and found.confirm is None
    assert found.problems == [
        "No master is elected: of the SyncStateSet, x:1 does not answer the controllers.",
        "x:2 is not in the SyncStateSet, and is not elected: it lacks acknowledged messages.",
    ]


def test_the_confirm_offset_is_unknown_while_a_replica_is_not_connected() -> None:
    brokers = cluster()
    brokers.answers["x:1", HA_STATUS] = ha_status(5000)
    assert group_of(brokers).confirm is None


@pytest.mark.parametrize(
    ("code", "answers", "problem"),
    [
        (METADATA, None, "No controller answers"),
        (METADATA, answer(group="controllers", isLeader="false"), "No controller leads"),
        (SYNC_STATE, None, "The controllers do not know this group"),
        (SYNC_STATE, answer([1]), "The controllers do not know this group"),
        (SYNC_STATE, answer({"replicasInfoTable": {"a": 5}}), "The controllers do not know"),
        (
            SYNC_STATE,
            answer({"replicasInfoTable": {"a": {"inSyncReplicas": [1, {}], "masterAddress": 7}}}),
            "No master is elected",
        ),
    ],
)
def test_what_is_missing_or_malformed_is_a_sentence(
    code: RequestCode, answers: RemotingCommand | None, problem: str
) -> None:
    brokers = cluster()
    for address in ("c:1", "c:2"):
        if answers is None:
            brokers.answers.pop((address, code), None)
        else:
            brokers.answers[address, code] = answers
    assert group_of(brokers).problems[0].startswith(problem)


def test_ten_viewers_cost_one_round_of_requests_and_names_are_text() -> None:
    async def run() -> None:
        hostile = "<script>alert(1)</script>"
        brokers = cluster()
        brokers.answers["c:1", SYNC_STATE] = sync_state(
            [{**replica(1), "brokerAddress": hostile}], [], masterAddress=hostile
        )
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        brokers.requests.clear()
        async with browsing(collector) as client:
            for _ in range(10):
                page = await page_of(client, "/replication")
            assert hostile not in page and "&lt;script&gt;alert(1)" in page
            assert ">Java</abbr>" in page
        assert brokers.requests == {
            METADATA.name: 2,
            SYNC_STATE.name: 1,
            EPOCHS.name: 2,
            HA_STATUS.name: 1,
        }

    asyncio.run(run())


def test_a_group_stays_while_no_broker_of_it_answers() -> None:
    async def run() -> None:
        brokers = cluster()
        clock = SetClock()
        collector = collecting.Collector(brokers, clock)
        reader = ControllerReader(collector)
        await collector.poll()
        await reader.groups()
        brokers.infos.clear()
        clock.time_ms += 60_000
        await collector.poll()
        (found,) = await reader.groups()
        assert found.master == "x:1" and {each.fault for each in found.replicas} == {
            "x:1: connection refused",
            "x:2: connection refused",
        }

    asyncio.run(run())
