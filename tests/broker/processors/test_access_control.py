"""Access control of a broker: the 26 checks (docs/reference/security.md), the table of required
permissions, account requests, reloading.

A plain user may use topic ``Open`` but not ``Secret``; all requests are sent to a real broker in
memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from attrs import define

from rmqpy.acl.plain_acl_file import parse_access_file
from rmqpy.acl.signature import REFUSED, Credentials
from rmqpy.broker.processors.access_demands import (
    ADMINISTRATION,
    ELSEWHERE,
    SECRETS,
    broker_demands,
)
from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError
from rmqpy.namesrv.access import NAMESRV_DEMANDS
from rmqpy.remoting.bodies import AclConfig
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

HOME = "/rocketmq"
PLAIN_FILE = f"{HOME}/conf/plain_acl.yml"
PLAIN = Credentials("plain-user", "plain-secret")
ADMIN = Credentials("administrator", "admin-secret")
ACCOUNTS = """\
accounts:
- accessKey: plain-user
  secretKey: plain-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [Open=PUB|SUB]
  groupPerms: [Mine=SUB]
- {accessKey: administrator, secretKey: admin-secret, admin: true}
- {accessKey: homely-user, secretKey: homely-secret, whiteRemoteAddress: 10.7.7.*}
globalWhiteRemoteAddresses: [10.8.8.8]
"""

Answer = RemotingCommand


@define
class Guarded:
    """A broker with access control, and requests signed by a chosen account."""

    harness: BrokerHarness

    def ask(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        by: Credentials | None = PLAIN,
        address: str = "10.0.0.1",
    ) -> Answer:
        texts = {name: str(value) for name, value in (fields or {}).items()}
        request = RemotingCommand(int(code), ext_fields=texts, body=body)
        return self.deliver(request if by is None else by.signed(request), address)

    def deliver(self, request: RemotingCommand, address: str = "10.0.0.1") -> Answer:
        channel = MemoryChannel(peer=(address, 1234))
        self.harness.deliver(request, channel=channel)
        self.harness.scheduler.advance(0)
        (answer,) = [each for each in channel.take() if each.is_response]
        return answer

    def send(self, topic: str, by: Credentials | None = PLAIN, code: int = 310) -> Answer:
        header = self.harness.send_command(b"body", topic=topic, code=code)
        return self.ask(code, header.ext_fields, b"body", by)

    def pull(self, topic: str, group: str = "Mine", by: Credentials = PLAIN) -> Answer:
        fields = self.harness.pull_command(topic=topic, consumer_group=group).ext_fields
        return self.ask(11, {**fields, "suspendTimeoutMillis": 0}, by=by)


def refused(answer: Answer) -> bool:
    return answer.code == ResponseCode.SYSTEM_ERROR and str(answer.remark).startswith(REFUSED)


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.put(PLAIN_FILE, ACCOUNTS.encode())
    return files


@pytest.fixture
def broker(build: BuildBroker, files: MemoryFiles) -> Guarded:
    guarded = Guarded(build(files=files, acl_enable=True, rocketmq_home=HOME))
    for topic in ("Open", "Secret"):
        assert guarded.send(topic, ADMIN).code == 0
    return guarded


QUEUE = {"topic": "Secret", "queueId": 0}


def offset_of(answer: Answer) -> int:
    return int(answer.ext_fields["msgId"][-16:], 16)


CHECKS: dict[str, Callable[[Guarded], bool]] = {
    "unsigned send": lambda b: refused(b.send("Open", None)),
    "unsigned request without fields": lambda b: refused(b.ask(26, by=None)),
    "unknown key": lambda b: refused(b.send("Open", Credentials("nobody-known", "plain-secret"))),
    "wrong secret": lambda b: refused(b.send("Open", Credentials("plain-user", "other-secret"))),
    "right secret by V2": lambda b: b.send("Open").code == 0,
    "right secret by V1": lambda b: b.send("Open", code=10).code == 0,
    "denied topic by V2": lambda b: refused(b.send("Secret")),
    "denied topic by V1": lambda b: refused(b.send("Secret", code=10)),
    "denied topic by batch": lambda b: refused(send_batch(b, "Secret")),
    "denied topic by pull": lambda b: refused(b.pull("Secret")),
    "denied topic by offset query": lambda b: refused(b.ask(30, QUEUE)),
    "the administrator may": lambda b: all(
        not refused(answer)
        for answer in (b.send("Secret", ADMIN), b.ask(30, QUEUE, by=ADMIN), b.ask(26, by=ADMIN))
    ),
    "reading a denied message by id": lambda b: refused(
        b.ask(33, {"offset": offset_of(b.send("Secret", ADMIN))})
    ),
    "create topic": lambda b: (
        refused(b.ask(17, NEW_TOPIC)) and not b.harness.broker.topics.get("N")
    ),
    "delete topic": lambda b: refused(b.ask(215, {"topic": "Open"})) and b.send("Open").code == 0,
    "broker configuration": lambda b: refused(b.ask(25, body=b"brokerPermission=2")),
    "create group": lambda b: refused(b.ask(200, body=b'{"groupName":"G"}')),
    "list accounts": lambda b: refused(b.ask(54)),
    "no secret in any list": lambda b: not secrets_in(b.ask(54, by=ADMIN), b.ask(26, by=ADMIN)),
    "create an administrator": lambda b: (
        refused(b.ask(50, NEW_ACCOUNT))
        and b"intruder" not in b.harness.files.read_bytes(PLAIN_FILE)
    ),
    "read configuration": lambda b: refused(b.ask(26)),
    "reset offsets": lambda b: refused(b.ask(222, RESET)),
    "all consumer offsets": lambda b: refused(b.ask(43)),
    "all topic configurations": lambda b: refused(b.ask(21)),
    "replay of signed bytes": lambda b: replayed(b) == [0, 0],
    "changed body under an old signature": lambda b: refused(changed_body(b)),
}
NEW_TOPIC: dict[str, object] = {
    "topic": "N",
    "defaultTopic": "TBW102",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
}
NEW_ACCOUNT: dict[str, object] = {
    "accessKey": "intruder",
    "secretKey": "intruder-secret",
    "admin": "true",
}
RESET: dict[str, object] = {"topic": "Open", "group": "Mine", "timestamp": 0, "isForce": "true"}


def send_batch(broker: Guarded, topic: str) -> Answer:
    fields = {**broker.harness.send_command(topic=topic).ext_fields, "m": "true"}
    return broker.ask(320, fields, encode_batch_body([BatchItem(0, b"x", b"")]))


def secrets_in(*answers: Answer) -> bool:
    assert all(answer.code == 0 for answer in answers)
    text = b"".join(answer.body for answer in answers)
    return any(secret in text for secret in (b"plain-secret", b"admin-secret", b"homely-secret"))


def signed_send(broker: Guarded) -> RemotingCommand:
    return PLAIN.signed(broker.harness.send_command(b"once", topic="Open"))


def replayed(broker: Guarded) -> list[int]:
    request = signed_send(broker)
    return [broker.deliver(request).code, broker.deliver(request).code]


def changed_body(broker: Guarded) -> Answer:
    request = signed_send(broker)
    request.body = b"other"
    return broker.deliver(request)


def test_there_are_26_checks_and_the_page_lists_them() -> None:
    assert len(CHECKS) == 26
    page = Path(__file__).parents[3] / "docs" / "reference" / "security.md"
    head = "| check |\n|---|\n"
    _, _, table = page.read_text(encoding="utf-8").partition(head)
    assert table.startswith("".join(f"| {name} |\n" for name in CHECKS) + "\n")


@pytest.mark.parametrize("name", CHECKS)
def test_access_check(broker: Guarded, name: str) -> None:
    assert CHECKS[name](broker)


# ------------------------------------------------------------------------------------- the table


def test_every_request_code_is_declared_exactly_once(broker: Guarded) -> None:
    """A code without a declaration is refused to all accounts, so none may be forgotten."""
    demands = broker_demands(broker.harness.store.reader)
    at_brokers, at_namesrv = set(demands), set(NAMESRV_DEMANDS)
    assert at_brokers | at_namesrv | ELSEWHERE == set(RequestCode)
    assert not at_brokers & at_namesrv
    assert not (at_brokers | at_namesrv) & ELSEWHERE
    assert len(ADMINISTRATION) == len(set(ADMINISTRATION) - set(SECRETS))


def test_every_code_that_a_broker_answers_is_declared(broker: Guarded) -> None:
    assert set(broker.harness.broker.server._handlers) <= set(
        broker_demands(broker.harness.store.reader)
    )


def test_an_undeclared_code_is_always_refused(broker: Guarded) -> None:
    broker.harness.broker.server.register_handlers(
        {7777: lambda _channel, request: RemotingCommand.response_to(request)}
    )
    for by in (None, PLAIN, ADMIN):
        assert refused(broker.ask(7777, by=by))
    assert refused(broker.ask(7777, by=None, address="10.8.8.8"))


@pytest.mark.slow
@pytest.mark.parametrize("code", sorted({*ADMINISTRATION, *SECRETS}))
def test_a_plain_user_cannot_administrate(broker: Guarded, code: int) -> None:
    assert refused(broker.ask(code)) or broker.ask(code).code == 3


# ------------------------------------------------------------------------------ rights by request


def test_a_plain_user_may_use_its_topics_and_groups(broker: Guarded) -> None:
    heartbeat = {
        "clientID": "c",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [
            {"groupName": "Mine", "subscriptionDataSet": [{"topic": "Open", "subString": "*"}]}
        ],
    }
    assert broker.ask(34, body=json.dumps(heartbeat).encode()).code == 0
    assert broker.pull("Open").code == 0
    own = {"consumerGroup": "Mine", "topic": "Open", "queueId": 0}
    assert broker.ask(15, {**own, "commitOffset": 1}).code == 0
    assert broker.ask(14, own).ext_fields["offset"] == "1"
    assert broker.ask(30, {"topic": "Open", "queueId": 0}).code == 0
    sent = broker.send("Open")
    assert broker.ask(33, {"offset": offset_of(sent)}).code == 0
    back = {"offset": offset_of(sent), "group": "Mine", "delayLevel": 0}
    assert broker.ask(36, back).code == 0
    assert broker.ask(38, {"consumerGroup": "Mine"}).code == 0
    lock = {"consumerGroup": "Mine", "clientId": "c", "mqSet": []}
    assert broker.ask(41, body=json.dumps(lock).encode()).code == 0
    assert broker.ask(35, {"clientID": "c", "consumerGroup": "Mine"}).code == 0


def test_topics_and_groups_of_others_are_refused(broker: Guarded) -> None:
    queue = {"topic": "Secret", "brokerName": "b", "queueId": 0}
    subscription = {"topic": "Secret", "subString": "*"}
    bodies = {
        34: {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "Mine", "subscriptionDataSet": [subscription]}],
        },
        41: {"consumerGroup": "Mine", "clientId": "c", "mqSet": [queue]},
        42: {"consumerGroup": "Theirs", "clientId": "c", "mqSet": []},
        46: {"clientId": "c", "group": "Mine", "subscriptionData": subscription},
    }
    for code, body in bodies.items():
        assert refused(broker.ask(code, body=json.dumps(body).encode())), code
    theirs = {"consumerGroup": "Theirs", "topic": "Open", "queueId": 0}
    assert refused(broker.ask(15, {**theirs, "commitOffset": 1}))
    assert refused(broker.ask(14, theirs))
    assert refused(broker.ask(38, theirs))
    assert refused(broker.ask(35, {**theirs, "clientID": "c"}))
    assert refused(
        broker.ask(
            12, {"topic": "Secret", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
        )
    )
    assert refused(broker.pull("Open", "Theirs"))
    for code in (29, 31, 32):
        assert refused(broker.ask(code, {**QUEUE, "timestamp": 0})), code


def test_a_denied_message_cannot_be_read_through_the_own_retry_topic(broker: Guarded) -> None:
    """Sending back copies the message at an offset that the client chooses."""
    offset = offset_of(broker.send("Secret", ADMIN))
    assert refused(broker.ask(36, {"offset": offset, "group": "Mine", "delayLevel": 0}))


def test_the_retry_topic_of_another_group_cannot_be_written(broker: Guarded) -> None:
    fields = broker.harness.send_command(topic="%RETRY%Theirs", producer_group="Mine").ext_fields
    assert refused(broker.ask(310, fields))


def test_topics_that_hold_messages_of_others_are_for_administrators(
    build: BuildBroker, files: MemoryFiles
) -> None:
    files.put(
        PLAIN_FILE,
        ACCOUNTS.replace("defaultTopicPerm: DENY", "defaultTopicPerm: PUB|SUB").encode(),
    )
    broker = Guarded(build(files=files, acl_enable=True, rocketmq_home=HOME))
    assert not refused(broker.pull("Secret"))
    assert refused(broker.pull("SCHEDULE_TOPIC_XXXX"))
    assert refused(broker.pull("RMQ_SYS_TRANS_HALF_TOPIC"))


def test_ending_a_half_message_needs_permission_for_its_topic(broker: Guarded) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U"
    fields = broker.harness.send_command(topic="Secret", properties=properties).ext_fields
    half = broker.ask(310, fields, b"half", ADMIN)
    end = {
        "producerGroup": "PG",
        "tranStateTableOffset": half.ext_fields["queueOffset"],
        "commitLogOffset": offset_of(half),
        "commitOrRollback": 8,
        "msgId": "U",
    }
    assert refused(broker.ask(37, end))
    assert broker.ask(37, end, by=ADMIN).code == 0


def test_every_account_may_write_traces(broker: Guarded) -> None:
    assert not refused(broker.send("RMQ_SYS_TRACE_TOPIC"))


# --------------------------------------------------------------------------------- white addresses


def test_white_addresses_allow_everything_but_account_requests(broker: Guarded) -> None:
    assert broker.ask(26, by=None, address="10.8.8.8").code == 0
    assert refused(broker.ask(54, by=None, address="10.8.8.8"))
    assert broker.ask(54, by=ADMIN, address="10.8.8.8").code == 0


def test_the_white_address_of_an_account_replaces_only_its_signature(broker: Guarded) -> None:
    """Java allows it administration, too."""
    key = {"AccessKey": "homely-user"}
    sent = {**broker.harness.send_command(topic="Secret").ext_fields, **key}
    assert broker.ask(310, sent, by=None, address="10.7.7.1").code == 0
    assert refused(broker.ask(310, sent, by=None, address="10.7.8.1"))
    assert refused(broker.ask(26, key, by=None, address="10.7.7.1"))


# --------------------------------------------------------------------------------- administration


def test_accounts_are_created_changed_listed_and_deleted(broker: Guarded) -> None:
    new = Credentials("new-account", "new-secret")
    fields = {"accessKey": "new-account", "secretKey": "new-secret", "admin": "false"}
    assert broker.ask(50, {**fields, "topicPerms": "Open=PUB,Secret=SUB"}, by=ADMIN).code == 0
    assert broker.send("Open", new).code == 0
    assert refused(broker.send("Secret", new))
    listed = AclConfig.decode(broker.ask(54, by=ADMIN).body)
    accounts = {each.access_key: each for each in listed.plain_access_configs or []}
    found = accounts["new-account"]
    assert (found.topic_perms, found.secret_key) == (["Open=PUB", "Secret=SUB"], None)
    written = parse_access_file(broker.harness.files.read_bytes(PLAIN_FILE).decode(), PLAIN_FILE)
    assert written.find("new-account") is not None
    assert written.version[0] == 1
    header = broker.ask(52, by=ADMIN).ext_fields
    assert json.loads(header["version"])["counter"] == 1
    assert list(json.loads(header["allAclFileVersion"])) == [PLAIN_FILE]
    assert broker.ask(51, {"accessKey": "new-account"}, by=ADMIN).code == 0
    assert refused(broker.send("Open", new))
    assert broker.ask(51, {"accessKey": "new-account"}, by=ADMIN).code == 210


def test_simultaneous_changes_do_not_undo_each_other(broker: Guarded) -> None:
    """The file is written outside the loop, and the second change arrives before the write ends."""
    channel = MemoryChannel()
    fields = {"secretKey": "new-secret"}
    requests = [
        ADMIN.signed(RemotingCommand(50, ext_fields={**fields, "accessKey": f"account-{number}"}))
        for number in range(5)
    ]
    broker.harness.deliver(*requests, channel=channel)
    broker.harness.scheduler.advance(0)
    assert [answer.code for answer in channel.take()] == [0] * 5
    file = parse_access_file(broker.harness.files.read_bytes(PLAIN_FILE).decode(), PLAIN_FILE)
    assert [each.access_key for each in file.accounts][3:] == [f"account-{n}" for n in range(5)]
    assert file.version[0] == 5


@pytest.mark.parametrize(
    "wrong",
    [{"secretKey": "short"}, {"topicPerms": "Open=ALL"}, {"whiteRemoteAddress": "nowhere"}],
)
def test_a_wrong_account_is_refused_and_changes_nothing(
    broker: Guarded, wrong: dict[str, str]
) -> None:
    before = broker.harness.files.read_bytes(PLAIN_FILE)
    fields = {"accessKey": "new-account", "secretKey": "new-secret", **wrong}
    answer = broker.ask(50, fields, by=ADMIN)
    assert answer.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert broker.harness.files.read_bytes(PLAIN_FILE) == before


def test_white_lists_are_changed_in_known_files_only(broker: Guarded) -> None:
    white = {"globalWhiteAddrs": "10.9.9.9, 10.8.8.*"}
    assert broker.ask(53, white, by=ADMIN).code == 0
    assert broker.ask(26, by=None, address="10.9.9.9").code == 0
    for path in ("/etc/passwd", f"{HOME}/conf/acl/../../other.yml"):
        answer = broker.ask(53, {**white, "aclFileFullPath": path}, by=ADMIN)
        assert answer.code == ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        assert not broker.harness.files.exists(path)


# ------------------------------------------------------------------------------------------ files


def test_a_changed_file_takes_effect_within_seconds_and_a_broken_one_does_not(
    broker: Guarded, files: MemoryFiles
) -> None:
    files.put(PLAIN_FILE, ACCOUNTS.replace("Open=PUB|SUB", "Secret=PUB").encode())
    broker.harness.scheduler.advance(6_000)
    assert broker.send("Secret").code == 0
    files.put(PLAIN_FILE, b"accounts: [")
    broker.harness.scheduler.advance(6_000)
    assert broker.send("Secret").code == 0


def test_the_folder_adds_files_and_the_first_account_of_a_name_counts(
    build: BuildBroker, files: MemoryFiles
) -> None:
    files.put(
        f"{HOME}/conf/acl/team/b.yaml",
        b"accounts:\n- {accessKey: plain-user, secretKey: other-secret, admin: true}\n"
        b"- {accessKey: team-user, secretKey: team-secret, defaultTopicPerm: PUB}\n",
    )
    files.put(f"{HOME}/conf/acl/tools.yml", b"accessKey: x\n")
    broker = Guarded(build(files=files, acl_enable=True, rocketmq_home=HOME))
    assert broker.send("Secret", Credentials("team-user", "team-secret")).code == 0
    assert refused(broker.send("Open", Credentials("plain-user", "other-secret")))
    assert broker.send("Open").code == 0


def test_a_broker_without_an_access_file_does_not_start(build: BuildBroker) -> None:
    with pytest.raises(ConfigError, match="plain_acl"):
        build(acl_enable=True, rocketmq_home=HOME)


def test_without_access_control_account_requests_are_unknown(harness: BrokerHarness) -> None:
    for code in SECRETS:
        assert harness.call(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
