"""The commands of mqadmin with our name server and broker: Java's output columns, and JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.admin.api import Admin
from rmqpy.admin.command import Command, CommandContext, ParsedArguments, UsageError
from rmqpy.admin.commands import COMMANDS
from rmqpy.admin.output import CommandResult
from rmqpy.client import ClientInstance, ClientSettings, Message, Producer, PullConsumer
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.testing.in_process import InProcess, name_server_and_broker

MQADMIN_COMMANDS = Path(__file__).with_name("mqadmin-4.9.7.tsv")
BY_NAME = {command.name: command for command in COMMANDS}


class Shell:
    """A runner of command lines; ``shown`` has the lines printed while they ran."""

    def __init__(self, instance: ClientInstance, running: InProcess) -> None:
        self.running = running
        self.instance = instance
        self.shown: list[str] = []
        self._admin = Admin(instance, [running.name_server])

    async def __call__(self, line: str) -> CommandResult:
        words = line.replace("BROKER", self.running.broker_address).split()
        command = BY_NAME[words[0]]
        arguments = ParsedArguments(parse_options(command, words[1:]))
        return await command.run(CommandContext(self._admin, arguments, self.shown.append))


def parse_options(command: Command, words: list[str]) -> dict[str, str]:
    options = {f"-{option.letter}": option for option in command.options}
    parsed = {}
    while words:
        option = options[words.pop(0)]
        parsed[option.name] = "true" if option.flag else words.pop(0)
    missing = [each.name for each in command.options if each.required and each.name not in parsed]
    assert not missing, missing
    return parsed


def json_of(result: CommandResult) -> Any:
    return json.loads(result.as_json())


def run_shell(root: Path, story: Callable[[Shell], Awaitable[None]]) -> None:
    """Run ``story`` with a name server and a broker whose files are in ``root``."""

    async def main() -> None:
        async with asyncio.timeout(30), name_server_and_broker(root) as running:
            settings = ClientSettings(name_servers=running.name_server)
            instance = await ClientInstance.open(settings)
            try:
                await story(Shell(instance, running))
            finally:
                await instance.close()

    asyncio.run(main())


def masked(text: str, address: str = "") -> str:
    """Return ``text`` with TIME for each time and @ for ``address``."""
    if address:
        text = text.replace(address, "@")
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?", "TIME", text)


# -- the table of commands


def test_all_commands_of_mqadmin_exist_with_their_options() -> None:
    listed = [line.split("\t") for line in MQADMIN_COMMANDS.read_text().splitlines()]
    assert len(listed) == 57
    for names, options in listed:
        name, *aliases = re.findall(r"\w+", names)
        command = BY_NAME[name]
        assert set(aliases) <= set(command.aliases)
        letters = {option.letter for option in command.options}
        assert set(re.findall(r"-(\w)", options)) - {"n"} <= letters, name


def test_names_and_letters_are_unique() -> None:
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))
    for command in COMMANDS:
        letters = [option.letter for option in command.options]
        assert len(letters) == len(set(letters)), command.name
        assert not {"n", "h"} & set(letters), command.name


# -- topics


def test_a_topic_is_created_changed_and_deleted(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        created = await shell("updateTopic -b BROKER -t Orders -r 3 -w 2")
        assert masked(created.text, shell.running.broker_address) == (
            "create topic to @ success.\n"
            "TopicConfig [topicName=Orders, readQueueNums=3, writeQueueNums=2, perm=RW-,"
            " topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]"
        )
        route = await shell("topicRoute -t Orders")
        assert json_of(route)["queueDatas"] == [
            {
                "brokerName": "a",
                "perm": 6,
                "readQueueNums": 3,
                "topicSysFlag": 0,
                "writeQueueNums": 2,
            }
        ]
        assert '\t"brokerDatas":[\n' in route.text
        listed = await shell("topicRoute -t Orders -l")
        lines = listed.text.splitlines()
        assert lines[0].split() == [
            "#ClusterName",
            "#BrokerName",
            "#BrokerAddrs",
            "#ReadQueue",
            "#WriteQueue",
            "#Perm",
        ]
        assert lines[2] == "-" * 158
        assert lines[3].split() == ["Total:", "1", "3", "2"]
        assert (await shell("topicClusterList -t Orders")).data == ["DefaultCluster"]
        assert "Orders" in (await shell("topicList")).text.splitlines()
        changed = await shell("updateTopicPerm -b BROKER -t Orders -p 4")
        assert "update topic perm from 6 to 4 in" in changed.text
        assert "perm=R--" in changed.text
        deleted = await shell("deleteTopic -t Orders -c DefaultCluster")
        assert deleted.text == (
            "delete topic [Orders] from cluster [DefaultCluster] success.\n"
            "delete topic [Orders] from NameServer success."
        )
        assert "Orders" not in (await shell("topicList")).text.splitlines()

    run_shell(tmp_path, story)


@pytest.mark.slow
def test_positions_and_messages_have_javas_columns(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        await shell("updateTopic -b BROKER -t Orders -r 1 -w 1")
        sent = await shell("sendMessage -t Orders -p hello -k order-7 -c new")
        assert sent.text.splitlines()[0] == (
            "#Broker Name                      #QID  #Send Result            #MsgId"
        )
        message_id = json_of(sent)["msgId"]
        status = await shell("topicStatus -t Orders")
        assert masked(status.text).splitlines() == [
            "#Broker Name                      #QID  #Min Offset           #Max Offset"
            "             #Last Updated",
            "a                                 0     0                     1"
            "                       TIME",
        ]
        by_key = await shell("queryMsgByKey -t Orders -k order-7")
        assert by_key.text.splitlines()[1] == f"{message_id:<50} {0:>4} {0:>40}"
        found = await shell("queryMsgByOffset -t Orders -b a -i 0 -o 0")
        assert "Tags:                [new]" in found.text
        assert found.text.endswith("WARN: No Consumer")
        offset_id = json_of(found)[0]["offsetMsgId"]
        by_id = await shell(f"queryMsgById -i {offset_id}")
        assert by_id.text.splitlines()[0] == f"OffsetID:            {offset_id}"
        unique = await shell(f"queryMsgByUniqueKey -t Orders -i {message_id}")
        assert unique.text.splitlines()[0] == "Topic:               Orders"
        path = re.search(r"Message Body Path: +(\S+)", unique.text)
        assert path is not None and Path(path[1]).read_bytes() == b"hello"
        Path(path[1]).unlink()
        assert (await shell("queryMsgByUniqueKey -t Orders -i 00")).says_no
        consumed = await shell("consumeMessage -t Orders -c 5")
        assert [each["body"] for each in json_of(consumed)] == ["hello"]
        assert shell.shown[-1].startswith(
            f"MSGID: {message_id} MessageExt [brokerName=a, queueId=0"
        )
        assert shell.shown[-1].endswith("transactionId='null'}] BODY: hello")
        counted = await shell("printMsgByQueue -t Orders -a a -i 0 -f true")
        assert counted.text == "Tag: new                            Count: 1"

    run_shell(tmp_path, story)


# -- groups


def test_a_group_and_its_progress_are_shown(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        await shell("updateTopic -b BROKER -t Orders -r 1 -w 1")
        created = await shell("updateSubGroup -b BROKER -g Readers -q 2")
        assert created.text.splitlines()[1] == (
            "SubscriptionGroupConfig [groupName=Readers, consumeEnable=true,"
            " consumeFromMinEnable=false, consumeBroadcastEnable=false, retryQueueNums=2,"
            " retryMaxTimes=16, brokerId=0, whichBrokerWhenConsumeSlowly=1,"
            " notifyConsumerIdsChangedEnable=true]"
        )
        settings = await shell("getConsumerConfig -g Readers")
        assert settings.text.splitlines()[:2] == [
            f"{'=' * 29}DefaultCluster:a{'=' * 29}",
            "groupName                               =  Readers",
        ]
        assert (await shell("getConsumerConfig -g Unknown")).says_no
        queue = MessageQueue("Orders", "a", 0)
        async with (
            Producer("Writers", instance=shell.instance) as producer,
            PullConsumer("Readers", instance=shell.instance) as consumer,
        ):
            for number in range(3):
                await producer.send(Message(topic="Orders", body=b"%d" % number))
            await consumer.pull(queue, 0)
            await consumer.commit_offset(queue, 2)
            await shell.instance.send_heartbeats()
            connection = await shell("consumerConnection -g Readers -b BROKER")
            assert connection.text.splitlines()[0].split() == [
                "#ClientId",
                "#ClientAddr",
                "#Language",
                "#Version",
            ]
            assert "ConsumeType: CONSUME_ACTIVELY\nMessageModel: CLUSTERING" in connection.text
            writers = await shell("producerConnection -g Writers -t Orders")
            assert writers.text.startswith("0001  ") and writers.text.endswith("V4_9_7")
            assert (
                "producer group (Writers) instance : clientId="
                in (await shell("producer -b BROKER")).text
            )
        # The route of the group's retry topic leads to the brokers that have its offsets.
        progress = await shell("consumerProgress -g Readers")
        lines = masked(progress.text).splitlines()
        assert lines[0].split("  ")[0] == "#Topic"
        assert lines[1].split() == ["Orders", "a", "0", "3", "2", "1", "TIME"]
        assert lines[-2:] == ["Consume TPS: 0.00", "Diff Total: 1"]
        every = await shell("consumerProgress")
        assert ["Readers", "0", "OFFLINE", "0", "1"] in [
            line.split() for line in every.text.splitlines()
        ]
        cloned = await shell("cloneGroupOffset -s Readers -d Others -t Orders")
        assert cloned.data == {queue: 2}
        deleted = await shell("deleteSubGroup -c DefaultCluster -g Readers")
        assert "delete topic [%DLQ%Readers] from NameServer success." in deleted.text

    run_shell(tmp_path, story)


# -- servers


def test_brokers_and_clusters_are_listed(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        address = shell.running.broker_address
        listed = (await shell("clusterList")).text.splitlines()
        assert listed[0] == (
            "#Cluster Name     #Broker Name            #BID  #Addr                  #Version"
            "                #InTPS(LOAD)       #OutTPS(LOAD) #PCWait(ms) #Hour #SPACE"
        )
        assert listed[1].split()[:5] == ["DefaultCluster", "a", "0", address, "V4_9_7"]
        more = (await shell("clusterList -m")).text.splitlines()
        assert more[1].split() == ["DefaultCluster", "a", "0", "0", "0", "0"]
        status = await shell("brokerStatus -b BROKER")
        assert "brokerVersionDesc               : V4_9_7" in status.text
        both = await shell("brokerStatus -c DefaultCluster")
        assert both.text.splitlines()[0].startswith(f"{address:<24} ")
        settings = await shell("getBrokerConfig -c DefaultCluster")
        assert settings.text.splitlines()[0] == f"============Master: {address}============"
        assert "brokerName                                        =  a" in settings.text
        with pytest.raises(UsageError, match="either -b BROKER"):
            await shell("getBrokerConfig")
        with pytest.raises(
            RequestRejectedError, match="cluster x has no master; known clusters: DefaultCluste"
        ):
            await shell("cleanUnusedTopic -c x")

    run_shell(tmp_path, story)


def test_settings_of_a_name_server_are_shown_and_changed(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        server = shell.running.name_server
        settings = (await shell("getNamesrvConfig")).text
        assert settings.startswith(f"============{server}============\n")
        wiped = await shell("wipeWritePerm -b a")
        assert re.fullmatch(
            rf"wipe write perm of broker\[a\] in name server\[{server}\] OK, \d+", wiped.text
        )
        assert (await shell("addWritePerm -b a")).data == wiped.data
        assert (await shell("updateKvConfig -s NS -k a -v b")).text == (
            "create or update kv config to namespace success."
        )
        assert (await shell("deleteKvConfig -s NS -k a")).text == (
            "delete kv config from namespace success."
        )
        assert (await shell("updateOrderConf -t Orders -m put -v a:4")).text == (
            "update orderConf success. topic=[Orders], orderConf=[a:4]"
        )
        assert (await shell("updateOrderConf -t Orders -m get")).text == (
            "get orderConf success. topic=[Orders], orderConf=[a:4] "
        )
        await shell("updateOrderConf -t Orders -m delete")
        assert "orderConf=[null]" in (await shell("updateOrderConf -t Orders -m get")).text
        with pytest.raises(UsageError, match="put, get or delete"):
            await shell("updateOrderConf -t Orders -m drop")

    run_shell(tmp_path, story)


def test_exports_are_written_to_files(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        await shell("updateTopic -b BROKER -t Orders -r 1 -w 1")
        await shell("updateSubGroup -b BROKER -g Readers")
        for command, name in (
            ("exportMetadata", "metadata"),
            ("exportConfigs", "configs"),
            ("exportMetrics", "metrics"),
        ):
            path = tmp_path / "out" / f"{name}.json"
            exported = await shell(f"{command} -c DefaultCluster -f {path.parent}")
            assert exported.text == f"export {path} success"
            assert json.loads(path.read_text()) == json_of(exported)["content"]
        metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
        assert list(metadata["topicConfigTable"]) == ["Orders"]
        assert list(metadata["subscriptionGroupTable"]) == ["Readers"]
        configs = json.loads((tmp_path / "out" / "configs.json").read_text())
        assert configs["clusterScale"] == {
            "namesrvSize": 1,
            "masterBrokerSize": 1,
            "slaveBrokerSize": 0,
        }

    run_shell(tmp_path, story)


def test_latencies_are_measured(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        await shell("updateTopic -b BROKER -t Orders -r 2 -w 2")
        checked = await shell("checkMsgSendRT -t Orders -a 3")
        lines = checked.text.splitlines()
        assert [line.split()[:3] for line in lines[1:4]] == [
            ["a", "0", "true"],
            ["a", "1", "true"],
            ["a", "0", "true"],
        ]
        assert re.fullmatch(r"Avg RT: \d+\.\d\d", lines[4])
        await shell("sendMsgStatus -b a -c 2")
        assert sum("SendResult=SendResult [sendStatus=SEND_OK" in each for each in shell.shown) == 2
        rounds = await shell("clusterRT -a 2 -r 1")
        assert json_of(rounds)[0]["ok"] == 2
        watched = await shell("startMonitoring -r 1")
        assert shell.shown[-2:] == ["[MONITOR] beginRound", "[MONITOR] endRound"]
        assert not watched.says_no

    run_shell(tmp_path, story)


# -- fence


@pytest.mark.slow
def test_fence_closes_a_broker_and_lifts_it(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        async with Producer("Writers", instance=shell.instance) as producer:
            await producer.send(Message(topic="T", body=b"before"))
            result = await shell("fence -b BROKER -s 60")
            (member,) = json_of(result)["members"]
            assert not result.says_no and member["role"] == "ASYNC_MASTER"
            assert 59_000 < member["remaining_ms"] <= 60_000
            assert member["end"] == member["confirmed"] > 0 and member["waiting"] == 0
            assert f"level: every member ends at {member['end']}" in result.text
            with pytest.raises(RmqError, match="service not available"):
                await producer.send(Message(topic="T", body=b"refused"))
            lifted = json_of(await shell("fence -b BROKER -l"))
            assert [each["remaining_ms"] for each in lifted["members"]] == [0]
            await producer.send(Message(topic="T", body=b"after"))
            again = await shell("fence -m a -s 60")
            assert json_of(again)["members"][0]["end"] > member["end"]
            for line in ("fence", "fence -b BROKER -m a", "fence -m b", "fence -b BROKER -s 0"):
                with pytest.raises(UsageError):
                    await shell(line)

    run_shell(tmp_path, story)


@pytest.mark.slow
def test_a_deadline_that_a_broker_refuses_leaves_it_open(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        with pytest.raises(RequestRejectedError, match="seconds=4000: expected 1 to 3600"):
            await shell("fence -b BROKER -s 4000")
        assert shell.running.broker.broker.fence.state().remaining_ms == 0

    run_shell(tmp_path, story)


@pytest.mark.slow
def test_fence_takes_the_write_permission_of_a_broker_without_fences(tmp_path: Path) -> None:
    async def story(shell: Shell) -> None:
        broker = shell.running.broker.broker
        del broker.server._handlers[RequestCode.RMQPY_FENCE]  # As Java, it answers code 3.

        def permission() -> int:
            return broker.identity.broker_settings.broker_permission

        with pytest.raises(RmqError, match="found a Java broker, expected rmqpy"):
            await shell("fence -b BROKER -s 60")
        for line, expected in (
            ("-s 35", "--seconds 35: expected more than the 35 s"),
            ("-s 60 -q 60", "--seconds 60: expected more than the 60 s"),
            ("-q 0", "--quiet 0: expected a positive number"),
        ):
            with pytest.raises(UsageError, match=expected):
                await shell(f"fence -b BROKER -j {line}")
        assert permission() == 6
        result = await shell("fence -b BROKER -s 60 -j -q 1")
        assert permission() == 4 and not result.says_no
        assert "brokerPermission=4 stays in broker.conf until --lift --java" in result.text
        assert [each["role"] for each in json_of(result)["members"]] == ["java"]
        await shell("fence -b BROKER -l -j")
        assert permission() == 6

    run_shell(tmp_path, story)
