"""``rmqpy why no-message``: one case for each step on the path of a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from why.conftest import LiveBroker, Ran

from rmqpy.acl.plain_acl_file import PlainAccount
from rmqpy.acl.rules import SUB
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC, dlq_topic, retry_topic
from rmqpy.remoting.bodies import (
    AclConfig,
    ConsumerRunningInfo,
    MessageQueue,
    PlainAccessConfig,
    ProcessQueueInfo,
)
from rmqpy.why.answer import Answer, Certainty
from rmqpy.why.message_id import MessageId, parse_message_id
from rmqpy.why.questions.message_copies import CopyKind, GroupPosition, MessageCopy, WhereResult
from rmqpy.why.questions.message_facts import (
    ConsumerGroupFacts,
    NoMessageFacts,
    QueueFacts,
    TopicFacts,
)
from rmqpy.why.questions.no_message import explain_no_message
from rmqpy.why.sources.accounts import accounts_of_answer
from rmqpy.why.sources.clients import locks_of
from rmqpy.why.sources.interface import (
    AccessAccounts,
    ClientGroup,
    KnownAccount,
    LogPlace,
    OrderlyQueue,
    StoreRange,
)

NOW_MS = 1_795_300_000_000
GROUP = "orders-app"
TOPIC = TopicFacts(
    name="Orders",
    known=True,
    config={"perm": 6, "readQueueNums": 2, "writeQueueNums": 2},
    queues=(QueueFacts(queue_id=0, first=0, end=20, offset=20),),
)
MEMBERS = ClientGroup(
    clients=("a@1", "b@2"),
    message_model="CLUSTERING",
    consume_type="CONSUME_PASSIVELY",
    consume_from="CONSUME_FROM_LAST_OFFSET",
    expression="*",
)
GROUP_FACTS = ConsumerGroupFacts(
    name=GROUP, known=True, config={"consumeEnable": True}, members=MEMBERS
)


def stored(topic: str = "Orders", **fields: Any) -> StoredMessage:
    values: dict[str, Any] = {
        "size": 200,
        "version": 1,
        "body_crc": 0,
        "queue_id": 0,
        "flag": 0,
        "queue_offset": 7,
        "physical_offset": 4096,
        "sys_flag": 0,
        "born_timestamp_ms": NOW_MS - 5000,
        "born_host": (bytes(4), 1),
        "store_timestamp_ms": NOW_MS - 4000,
        "store_host": (bytes(4), 10911),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"x",
        "topic": topic,
        "properties": {"TAGS": "paid", "UNIQ_KEY": "k", "REAL_TOPIC": "Orders"},
    }
    return StoredMessage(**(values | fields))


PLACE = LogPlace(log="classic", file="commitlog/0", position=4096)
COPY = MessageCopy(kind=CopyKind.TOPIC, message=stored(), place=PLACE)


def facts(copies: Iterable[MessageCopy] = (COPY,), **fields: Any) -> NoMessageFacts:
    where = WhereResult(source="store", copies=tuple(copies), searched=("everything",))
    values: dict[str, Any] = {
        "subject": "store",
        "is_live": True,
        "target": "127.0.0.1:10911",
        "now_ms": NOW_MS,
        "settings": {"transactionCheckMax": "15", "fileReservedTime": "72"},
        "settings_from": "broker.conf",
        "range": StoreRange(begin=1024, end=9000, first_ms=NOW_MS - 60_000),
        "topic": TOPIC,
        "group": GROUP_FACTS,
        "wanted": MessageId(text="k", kind=parse_message_id("k", NOW_MS).kind),
        "where": where,
    }
    return NoMessageFacts(**(values | fields))


def passed(offset: int) -> MessageCopy:
    return evolve(COPY, groups=(GroupPosition(GROUP, offset, 7),))


def first(answer: Answer) -> tuple[Certainty, str]:
    assert answer.causes, answer
    return answer.causes[0].certainty, answer.causes[0].text


def group(**fields: Any) -> ConsumerGroupFacts:
    return evolve(GROUP_FACTS, **fields)


def members(**fields: Any) -> ConsumerGroupFacts:
    return group(members=evolve(MEMBERS, **fields))


def topic(**config: Any) -> TopicFacts:
    return evolve(TOPIC, config={**(TOPIC.config or {}), **config})


def other(kind: CopyKind, name: str, **fields: Any) -> MessageCopy:
    """Return a copy in another topic; ``fields`` are those of the copy."""
    return MessageCopy(kind=kind, message=stored(name, reconsume_times=3), place=PLACE, **fields)


HALF = other(CopyKind.HALF, TRANSACTION_HALF_TOPIC, resolved=False)
DELAYED = other(CopyKind.DELAYED, SCHEDULE_TOPIC, level=3, due_ms=NOW_MS + 90_000, delivered=False)
BACKLOG = evolve(TOPIC, queues=(QueueFacts(queue_id=0, first=0, end=20, offset=7),))
WAITS = OrderlyQueue(client="a@1", queue_id=0, is_locked=False, last_lock_ms=0)
CASES = {
    "deleted by time": (
        facts((), wanted=parse_message_id("00" * 5 + "01" + "00" * 10, NOW_MS)),
        "it was deleted: the id was created",
    ),
    "nowhere": (facts(()), "this store does not have it"),
    "half": (facts((HALF,)), "the transaction is pending"),
    "rolled back": (facts((evolve(HALF, resolved=True),)), "the producer rolled the transaction"),
    "given up": (
        facts((HALF, other(CopyKind.GIVEN_UP, "TRANS_CHECK_MAX_TIME_TOPIC"))),
        "the transaction was given up: the producer did not commit it in 15 checks",
    ),
    "delayed": (facts((DELAYED,)), "it is delayed: due at"),
    "overdue": (
        facts((evolve(DELAYED, due_ms=NOW_MS - 1),)),
        "it is delayed and was due at",
    ),
    "uncommitted": (
        facts((evolve(COPY, place=evolve(PLACE, index=9, term=2, committed=False)),)),
        "entry 9 of term 2 is not known to be committed",
    ),
    "no unit": (
        facts((evolve(COPY, unit_fault="the queue has no unit for it"),)),
        "it is in the log, but its consume queue does not lead to it",
    ),
    "no topic": (facts(topic=evolve(TOPIC, config=None)), "the broker does not have the topic"),
    "no read permission": (facts(topic=topic(perm=2)), "consumers may not read the topic"),
    "queue not read": (facts(topic=topic(readQueueNums=0)), "consumers do not read queue 0"),
    "unknown group": (facts(group=group(config=None)), "no member of orders-app has ever"),
    "group off": (
        facts(group=group(config={"consumeEnable": False})),
        "consumption of orders-app is switched off",
    ),
    "offline": (facts(group=group(members=ClientGroup())), "no member of orders-app is online"),
    "no broadcasting": (
        facts(
            group=evolve(
                members(message_model="BROADCASTING"), config={"consumeBroadcastEnable": False}
            )
        ),
        "orders-app consumes in broadcasting mode, which is switched off",
    ),
    "not locked": (
        facts((), topic=BACKLOG, wanted=None, where=None, group=members(locks=(WAITS,))),
        "queue 0 is consumed in order, and no member of orders-app has its lock",
    ),
    "not subscribed": (
        facts(group=members(expression=None)),
        "the members of orders-app have not subscribed to Orders",
    ),
    "conflict": (
        facts(group=members(subscriptions=(("a@1", "paid"), ("b@2", "open")))),
        "the members of orders-app have different subscriptions",
    ),
    "other tag": (
        facts(group=members(expression="open || closed")),
        "the group's filter does not select it: TAG open || closed",
    ),
    "SQL of a stopped broker": (
        facts(group=group(members=None, sql=("TAGS = 'open'", False))),
        "the group's filter does not select it: SQL92 TAGS = 'open'",
    ),
    "dead letter": (
        facts((passed(8), other(CopyKind.DEAD, dlq_topic(GROUP)))),
        "orders-app received it and failed 3 times",
    ),
    "retry": (
        facts((passed(8), other(CopyKind.RETRY, retry_topic(GROUP)))),
        "orders-app received it and sent it back 3 times: the retry waits",
    ),
    "not reached": (facts((passed(2),)), "orders-app has not reached it: its offset in queue 0"),
    "no offset": (facts((COPY,)), "orders-app has no offset in queue 0"),
    "offset after the end": (
        facts((passed(30),), topic=evolve(TOPIC, queues=(evolve(TOPIC.queues[0], offset=30),))),
        "the group's offset 30 in queue 0 is after the end of the queue, 20",
    ),
    "deleted before it was consumed": (
        facts(topic=evolve(TOPIC, queues=(QueueFacts(queue_id=0, first=5, end=9, offset=2),))),
        "messages 2 to 4 of queue 0 were deleted before the group consumed them",
    ),
    "lag": (
        facts(
            wanted=None,
            where=None,
            topic=evolve(TOPIC, queues=(QueueFacts(queue_id=1, first=0, end=9, offset=2),)),
        ),
        "orders-app lags by 7 messages: queue (messages): 1 (7)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_proven(case: str) -> None:
    known, expected = CASES[case]
    certainty, text = first(explain_no_message(known))
    assert certainty is Certainty.PROVEN
    assert text.startswith(expected), text


def test_a_message_that_was_passed_without_a_trace_is_not_proven_to_be_skipped() -> None:
    certainty, text = first(explain_no_message(facts((passed(8),))))
    assert certainty is Certainty.POSSIBLE
    assert "consumed, filtered by the client, or skipped" in text


def test_offset_ids_outside_of_the_log_are_explained() -> None:
    texts = []
    for offset in (0, 5000, 10_000):
        wanted = parse_message_id(f"7F00000100002A9F{offset:016X}", NOW_MS)
        texts.append(first(explain_no_message(facts((), wanted=wanted)))[1])
    assert "is before the first offset of the log, 1024" in texts[0]
    assert "belongs to another broker" in texts[1]
    assert "is after the end of the log, 9000" in texts[2]


def test_a_group_that_has_everything_has_no_cause() -> None:
    answer = explain_no_message(facts(wanted=None, where=None))
    assert not answer.causes and "has passed every message" in answer.nothing


def test_what_a_directory_cannot_show_is_named() -> None:
    answer = explain_no_message(facts(is_live=False, group=group(members=None)))
    assert any("only a running broker knows them" in each for each in answer.not_examined)


# -- stores of Java


def test_a_rolled_back_and_a_given_up_transaction(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = store_of("C-upgraded-v497/n0")
    found = {}
    for key in ("bTK-1", "bTK-2", "bTK-3"):
        unique = run("where", key, store, "--format", "json").json["stores"][0]["found"][0]
        ran = run("why", "no-message", store, "--id", unique["message_id"], "--format", "json")
        found[key] = ran.json["answer"]
    assert any("rolled the transaction back" in text for text in found.values())
    assert any("was given up" in text for text in found.values())


def test_a_dead_letter_names_the_group_and_the_copy(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    ran = run(
        "why", "no-message", store_of("C-upgraded-v497/n0"), "--id", "bRK-0", "-g", "CID_retry"
    )
    assert ran.code == 0
    line = ran.out.splitlines()[1]
    assert line == "1. proven: CID_retry received it and failed 2 times: it is in %DLQ%CID_retry"


def test_misspelled_names_are_corrected(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    ran = run("why", "no-message", store_of("C-upgraded-v497/n0"), "-t", "Keyd", "-g", "CID_tga")
    assert "did you mean Keyed?" in ran.out and "did you mean CID_tag?" in ran.out


def test_a_changed_table_is_read(copy_of: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    store = copy_of("A-classic-clean-v497")
    table = store / "config" / "topics.json"
    content = json.loads(table.read_text())
    content["topicConfigTable"]["Keyed"]["perm"] = 2
    table.write_text(json.dumps(content))
    ran = run("why", "no-message", store, "--id", "aK-0", "--format", "json")
    assert ran.json["answer"] == "consumers may not read the topic: its permission is 2"


@pytest.mark.slow
def test_a_running_broker_says_that_nobody_is_online(
    live: LiveBroker, run: Callable[..., Ran]
) -> None:
    ran = run("why", "no-message", live.address, "-t", "Keyed", "-g", "CID_tag", "--format", "json")
    assert ran.code == 0
    assert ran.json["answer"] == "no member of CID_tag is online at this broker"
    assert ran.json["causes"][0]["next"]


def texts(answer: Answer) -> list[str]:
    return [cause.text for cause in answer.causes if cause.certainty is Certainty.POSSIBLE]


@pytest.mark.parametrize("known", [ClientGroup(), None])
def test_access_control_may_refuse_the_members(known: ClientGroup | None) -> None:
    """The settings are known from a directory and from a running broker."""
    offline = group(members=known)
    on = explain_no_message(facts((), wanted=None, group=offline, settings={"aclEnable": "true"}))
    assert any("lacks SUB on group orders-app and topic Orders" in each for each in texts(on))
    off = explain_no_message(facts((), wanted=None, group=offline))
    assert not any("SUB" in each for each in texts(off))


@pytest.mark.parametrize(
    "locks",
    [(), (evolve(WAITS, is_locked=True),), (WAITS, evolve(WAITS, client="b@2", is_locked=True))],
)
def test_a_queue_that_a_member_has_locked_is_no_cause(locks: tuple[OrderlyQueue, ...]) -> None:
    answer = explain_no_message(facts((), topic=BACKLOG, wanted=None, group=members(locks=locks)))
    assert not any("lock" in cause.text for cause in answer.causes)


def test_the_locks_of_orderly_clients_at_this_broker_are_read() -> None:
    queue = MessageQueue("Orders", "broker-a", 1)
    table = {
        queue: ProcessQueueInfo(locked=False, last_lock_timestamp=5),
        MessageQueue("Orders", "broker-a", 2): ProcessQueueInfo(droped=True),
        MessageQueue("Orders", "broker-b", 1): ProcessQueueInfo(),
        MessageQueue("Other", "broker-a", 1): ProcessQueueInfo(),
    }
    infos = {
        "a@1": ConsumerRunningInfo(properties={"PROP_CONSUMEORDERLY": "true"}, mq_table=table),
        "b@2": ConsumerRunningInfo(properties={"PROP_CONSUMEORDERLY": "false"}, mq_table=table),
    }
    assert list(locks_of(infos, "Orders", "broker-a")) == [
        OrderlyQueue(client="a@1", queue_id=1, is_locked=False, last_lock_ms=5)
    ]


def access(*accounts: PlainAccount, white: bool = False, fault: str = "") -> AccessAccounts:
    known = tuple(KnownAccount(each.account("acl.yml"), "acl.yml") for each in accounts)
    return AccessAccounts(known, has_white_addresses=white, fault=fault)


def with_rights(name: str, **rights: Any) -> PlainAccount:
    return PlainAccount(access_key=name, secret_key="secret-of-it", **rights)


READER = with_rights("reader-1", group_perms=("orders-app=SUB",), topic_perms=("Orders=PUB|SUB",))
WRITER = with_rights("writer-1", group_perms=("orders-app=PUB",), default_topic_perm="SUB")
STRANGER = with_rights("stranger", topic_perms=("Orders=SUB",))


def access_answer(known: AccessAccounts) -> Answer:
    return explain_no_message(
        facts(
            (),
            wanted=None,
            group=group(members=ClientGroup()),
            settings={"aclEnable": "true"},
            access=known,
        )
    )


def test_the_accounts_that_access_control_refuses_are_named_with_what_they_lack() -> None:
    answer = access_answer(access(READER, WRITER, STRANGER))
    (cause,) = (each for each in answer.causes if "access control" in each.text)
    assert cause.certainty is Certainty.POSSIBLE
    assert cause.text == "access control refuses a consumer that signs as writer-1, stranger"
    assert cause.evidence == (
        "account writer-1 (acl.yml): groupPerms has orders-app=PUB",
        "account stranger (acl.yml): no entry for group orders-app in groupPerms, and"
        " defaultGroupPerm=DENY",
        "these accounts may: reader-1",
    )


def test_access_control_that_refuses_every_account_is_proven() -> None:
    answer = access_answer(access(WRITER, STRANGER))
    (cause,) = (each for each in answer.causes if "access control" in each.text)
    assert cause.certainty is Certainty.PROVEN
    assert "none of its 2 accounts has SUB on group orders-app and topic Orders" in cause.text
    white = access_answer(access(WRITER, STRANGER, white=True))
    assert any("signs as writer-1, stranger" in each for each in texts(white))


def test_accounts_with_all_rights_leave_the_signature_as_a_possible_cause() -> None:
    answer = access_answer(access(READER, with_rights("the-admin", admin=True)))
    (text,) = (each for each in texts(answer) if "access control" in each)
    assert "does not sign" in text


def test_accounts_that_cannot_be_read_are_listed_as_not_examined() -> None:
    answer = access_answer(access(fault="plain_acl.yml: invalid YAML"))
    assert "accounts of access control: plain_acl.yml: invalid YAML" in answer.not_examined
    assert any("lacks SUB on group orders-app" in each for each in texts(answer))


def test_the_accounts_are_read_from_the_access_files_of_a_broker(
    copy_of: Callable[[str], Path], run: Callable[..., Ran], tmp_path: Path
) -> None:
    pytest.importorskip("yaml")
    store = copy_of("A-classic-clean-v497")
    (tmp_path / "home" / "conf" / "acl").mkdir(parents=True)
    (tmp_path / "home" / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: producer-1\n  secretKey: secret-of-it\n  defaultTopicPerm: PUB\n"
    )
    (tmp_path / "home" / "conf" / "acl" / "more.yml").write_text(
        "accounts:\n- accessKey: consumer-1\n  secretKey: secret-of-it\n"
        "  topicPerms:\n  - Normal=SUB\n  groupPerms:\n  - others=SUB\n"
    )
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\nrocketmqHome={tmp_path / 'home'}\naclEnable=true\n")
    ran = run(
        *("why", "no-message", store, "-c", conf, "-t", "Normal", "-g", "CID_push"),
        *("--format", "json"),
    )
    (cause,) = (each for each in ran.json["causes"] if "access control" in each["text"])
    assert cause["certainty"] == "proven"
    first, second = cause["evidence"]
    assert "account producer-1" in first and "defaultTopicPerm=PUB" in first
    assert f"account consumer-1 ({tmp_path}/home/conf/acl/more.yml)" in second
    assert "no entry for group CID_push in groupPerms" in second and "topicPerms" not in second


def test_the_accounts_that_a_broker_lists_have_their_rights_without_secrets() -> None:
    listed = AclConfig(
        global_white_addrs=[],
        plain_access_configs=[
            PlainAccessConfig(access_key="reader-1", secret_key=None, group_perms=["g=SUB"])
        ],
    )
    (known,) = accounts_of_answer(listed, "10.0.0.1:10911").accounts
    assert known.account.rights == {"%RETRY%g": SUB}
    assert "secret" not in repr(known)
