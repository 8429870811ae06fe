"""``rmqpy why election``: votes, terms, logs, and the members that cannot lead."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import evolve
from harness.cli import start_process, write_broker_conf
from why.conftest import LiveBroker, Ran

from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import dledger_settings, wait_until_accepting
from rmqpy.why.answer import Certainty
from rmqpy.why.gathering.election import member_of_broker
from rmqpy.why.questions.election import explain_election
from rmqpy.why.questions.election_facts import (
    ElectionFacts,
    OutsiderFacts,
    PeerFacts,
    VoterFacts,
)
from rmqpy.why.sources.live import BrokerSource

PEERS = "n0-a:1;n1-b:1;n2-c:1"


def member(number: int, **fields: Any) -> VoterFacts:
    values: dict[str, Any] = {
        "name": f"store-{number}",
        "self_id": f"n{number}",
        "term": 3,
        "voted_for": "n0",
        "end_index": 9,
        "end_term": 3,
        "committed_index": 9,
        "durable_index": 9,
        "peers": PEERS,
        "group": "g",
    }
    return VoterFacts(**(values | fields))


def facts(*members: VoterFacts, **fields: Any) -> ElectionFacts:
    given = members or (member(0), member(1), member(2))
    return ElectionFacts(subject="group", members=given, **fields)


BEHIND = member(2, end_index=5, end_term=2)
CASES = {
    "no quorum": (
        facts(member(0), member(1, running=False), member(2, running=False)),
        "there is no leader without a quorum: 1 of 3 members are up, and 2 are needed",
    ),
    "elected": (facts(), "n0 was elected in term 3, with the votes of 3 of 3 members"),
    "a candidate lost": (
        facts(member(0), member(1), member(2, voted_for="n2")),
        "n0 was elected in term 3, with the votes of 2 of 3 members; n2 stood against it",
    ),
    "split": (
        facts(member(0), member(1, voted_for="n1"), member(2, voted_for="n2")),
        "nobody has won term 3: its votes are split (n0 1, n1 1, n2 1), and 2 are needed",
    ),
    "an unknown vote": (
        facts(member(0), member(1), member(2, voted_for="?")),
        "n2 does not know its vote of term 3",
    ),
    "other peers": (
        facts(member(0), member(1), member(2, peers="n2-c:1")),
        "the members have different values of dLegerPeers",
    ),
    "not in its own peers": (
        facts(member(0), member(1), member(7)),
        "n7 is not in its own dLegerPeers",
    ),
    "refused": (
        facts(member(0, views=(PeerFacts("n1", reason="another old log"),)), member(1), member(2)),
        "n0 refuses n1: another old log",
    ),
    "fault": (facts(member(0, fault="the disk has failed")), "n0 must not lead: the disk"),
    "lost entries": (
        facts(member(0, durable_index=12), member(1), member(2)),
        "n0 has lost entries: 12 was on its disk, and its log ends at 9",
    ),
    "no tables": (facts(member(0, tables_missing=True)), "n0 has no topics.json"),
    "preferred leads": (
        facts(member(0, role="LEADER", preferred="n0"), member(1), member(2)),
        "n0 is a preferred leader",
    ),
    "preferred lags": (
        facts(member(0, role="LEADER", preferred="n1"), member(1), member(2)),
        "n0 leads, but n1 is preferred",
    ),
    "behind a quorum": (
        facts(member(0), member(1), BEHIND),
        "n2 cannot be elected: its log ends at index 5 of term 2, and a quorum has more",
    ),
    "behind one": (
        facts(member(0), evolve(BEHIND, self_id="n1"), BEHIND),
        "n1 does not get the vote of n0, whose log is longer",
    ),
    "terms without an entry": (
        facts(*(member(number, term=9) for number in range(3))),
        "6 terms have begun since the last entry was written (term 3)",
    ),
    "events": (
        facts(member(0, events=((1, "leads term 3"),)), member(1), member(2)),
        "the last changes, as the members report them: n0: leads term 3",
    ),
    "two members": (
        facts(member(0, peers="n0-a:1;n1-b:1"), member(1, peers="n0-a:1;n1-b:1")),
        "the group has 2 members: it stands still when 1 are gone",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_proven(case: str) -> None:
    known, expected = CASES[case]
    proven = [
        cause.text
        for cause in explain_election(known).causes
        if cause.certainty is Certainty.PROVEN
    ]
    assert any(text.startswith(expected) for text in proven), proven


def test_a_missing_member_makes_the_quorum_only_possible() -> None:
    known = facts(member(0), silent=(("c:10911", "no answer"),))
    cause = explain_election(known).causes[0]
    lost = [each for each in explain_election(known).causes if "without a quorum" in each.text]
    assert [each.certainty for each in lost] == [Certainty.POSSIBLE]
    assert cause.certainty is Certainty.POSSIBLE or "quorum" not in cause.text
    assert any("name the directories" in text for text in explain_election(known).not_examined)


def test_the_files_of_a_java_group_show_who_was_elected(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    stores = [store_of(f"D-dledger-v497/n{number}") for number in range(3)]
    ran = run("why", "election", *stores, "--format", "json")
    answers = [cause["text"] for cause in ran.json["causes"]]
    elected = "n0 was elected in term 3, with the votes of 2 of 3 members; n2 stood against it"
    assert ran.code == 0 and elected in answers


def test_a_damaged_vote_is_reported(
    copy_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = copy_of("D-dledger-v497/n1")
    (store / "dledger-n1" / "currterm").write_text("x")
    ran = run("why", "election", store)
    assert "n1 does not know its vote of term 3" in ran.out
    assert "the files of n1 are damaged: dledger-n1/currterm: 1 bytes without currTerm" in ran.out


def test_a_classic_store_holds_no_elections(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = store_of("A-classic-clean-v497")
    ran = run("why", "election", store)
    assert ran.code == 0 and "takes part in no election" in ran.out
    assert f"found: {store}: no folder dledger-ID" in ran.out and "member:" not in ran.out


def test_a_store_that_a_controller_leads_holds_no_elections(
    store_of: Callable[[str], Path], run: Callable[..., Ran], tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("enableControllerMode=true\ncontrollerAddr=10.0.0.1:9878\n")
    ran = run("why", "election", store_of("A-classic-clean-v497"), "-c", conf)
    assert ran.code == 0
    assert "the controller of RocketMQ 5.x at 10.0.0.1:9878 elects its master" in ran.out
    assert f"found: enableControllerMode=true ({conf})" in ran.out


@pytest.fixture
def member_address(tmp_path: Path) -> Iterator[str]:
    """Run the only member of a DLedger group."""
    block = free_port_block(4)
    settings = dledger_settings("g", block.broker_port + 3)
    conf = write_broker_conf(tmp_path, block.broker_port, brokerName="g", **settings)
    broker = start_process(["broker", "-c", str(conf)])
    assert broker.stdout is not None and broker.stdout.readline().startswith("ready:")
    wait_until_accepting(block.broker_port)
    yield f"127.0.0.1:{block.broker_port}"
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=30)


@pytest.mark.slow
def test_a_running_member_reports_its_state(member_address: str, run: Callable[..., Ran]) -> None:
    ran = run("why", "election", member_address, "--format", "json")
    assert {each["name"] for each in ran.json["facts"]} == {"group", "n0"}
    assert ran.json["not_examined"] == []


STATUS = {
    "group": "g",
    "self": "n1",
    "role": "FOLLOWER",
    "term": 4,
    "leader": "n0",
    "end": 20,
    "end_term": 4,
    "committed": 19,
    "fault": None,
    "peers": [{"id": "n0", "reason": None}, {"id": "n2", "reason": "another old log"}],
    "events": [{"time_ms": 1, "text": "follows n0 in term 4"}],
}


class Answering:
    """A broker that answers the status of a member (docs of ``group_status``)."""

    name = "a:1"

    def settings(self) -> tuple[dict[str, str], str]:
        return {"dLegerPeers": PEERS, "preferredLeaderId": "n0"}, "the running broker"

    def call(self, code: RequestCode) -> RemotingCommand:
        assert code is RequestCode.RMQPY_DLEDGER_STATUS
        return RemotingCommand.response_to(RemotingCommand.request(code), body=dumps(STATUS))


def test_the_status_of_a_member_is_understood() -> None:
    found = member_of_broker(cast(BrokerSource, Answering()))
    assert isinstance(found, VoterFacts)
    assert (found.self_id, found.role, found.leader, found.term) == ("n1", "FOLLOWER", "n0", 4)
    assert (found.log_end, found.committed_index) == ((4, 20), 19)
    texts = [cause.text for cause in explain_election(facts(found)).causes]
    assert "n1 refuses n2: another old log" in texts
    assert any("n1: follows n0 in term 4" in text for text in texts)


def test_a_master_that_was_a_member_leads_no_group() -> None:
    """``leave`` keeps the peers in the configuration, and clears the flag."""

    class Master:
        name = "a:1"

        def settings(self) -> tuple[dict[str, str], str]:
            keys = {"enableDLegerCommitLog": "false", "brokerId": "0", "dLegerSelfId": "n0"}
            return {**keys, "dLegerPeers": PEERS}, "the running broker"

        def call(self, code: RequestCode) -> None:
            return None

    found = member_of_broker(cast(BrokerSource, Master()))
    assert isinstance(found, OutsiderFacts)
    answer = explain_election(ElectionFacts(subject="a:1", members=(), outsiders=(found,)))
    text = "\n".join(answer.lines())
    assert answer.is_proven and "enableDLegerCommitLog is not set" in text
    assert "leads" not in text and "it is no member of a DLedger group" in text


@pytest.mark.slow
def test_a_broker_that_reports_no_terms_is_named(live: LiveBroker, run: Callable[..., Ran]) -> None:
    ran = run("why", "election", live.address, "127.0.0.1:1")
    assert ran.code == 0
    assert "it is no member of a DLedger group" in ran.out
    assert "127.0.0.1:1: " in ran.out
