"""``group.toml``: its form, its proposal from broker.conf files, and contradictions with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.config.loading import parse_broker_configuration
from rmqpy.config.properties_file import parse_properties
from rmqpy.model.errors import RmqError
from rmqpy.upgrade.group.contradictions import contradictions
from rmqpy.upgrade.group.group_file import (
    LOCAL,
    GroupFile,
    MemberSpec,
    parse_group_file,
)
from rmqpy.upgrade.group.group_file_text import group_file_text
from rmqpy.upgrade.group.proposal import FoundBroker, propose_group


def broker(number: int, more: str = "", host: str = LOCAL) -> FoundBroker:
    text = (
        "brokerName=b0\nbrokerClusterName=c0\n"
        f"listenPort={10911 + 10 * number}\nstorePathRootDir=/data/n{number}\n{more}"
    )
    path = f"/etc/n{number}.conf"
    return FoundBroker(
        host=host,
        path=path,
        configuration=parse_broker_configuration(text, path).configuration,
        keys={each.key: each.value for each in parse_properties(text, path)},
        directory=f"/data/n{number}",
    )


def group(*more: str) -> GroupFile:
    brokers = [broker(number, text) for number, text in enumerate(more or ("", "", ""))]
    return propose_group(brokers, lambda each, port: True).group


def with_member(changes: dict[str, str]) -> GroupFile:
    whole = group()
    return evolve(whole, members=(evolve(whole.members[0], **changes), *whole.members[1:]))


TEXTS = st.text(min_size=1, max_size=20)


@given(broker=TEXTS, config=TEXTS, start=st.text(max_size=20), names=st.sets(TEXTS, min_size=3))
def test_the_text_is_read_as_the_same_group(
    broker: str, config: str, start: str, names: set[str]
) -> None:
    members = tuple(
        MemberSpec(
            name=name,
            config=f"{config}{number}",
            directory=f"/{number}",
            address=f"h:{100 + number}",
            id=f"n{number}",
            peer=f"h:{20000 + number}",
            role="SLAVE" if number else "SYNC_MASTER",
            start=start,
        )
        for number, name in enumerate(sorted(names))
    )
    whole = GroupFile(broker=broker, cluster="c", dledger_group="g", members=members)
    assert parse_group_file(group_file_text(whole), "group.toml") == whole


def test_a_proposal_completes_what_the_configuration_does_not_say() -> None:
    brokers = [
        broker(0, "brokerRole=ASYNC_MASTER\nbrokerIP1=10.0.0.1\n"),
        broker(1, "brokerRole=SLAVE\nbrokerId=1\n", host="ssh://ops@far:2222"),
        broker(2, host="https://near:8443"),
    ]
    proposal = propose_group(brokers, lambda each, port: port != 20931)
    found = proposal.group
    assert (found.broker, found.cluster, found.dledger_group) == ("b0", "c0", "b0")
    assert found.peers == "n0-10.0.0.1:20911;n1-far:20921;n2-near:20932"
    assert [each.role for each in found.members] == ["ASYNC_MASTER", "SLAVE", "SLAVE"]
    assert found.members[1].replica == "n1=ssh://ops@far:2222/data/n1"
    assert found.members[2].replica == "n2=https://near:8443"
    assert "listenPort + 10001" in proposal.remarks["n2"][0]


def test_a_proposed_port_is_no_port_of_another_broker_of_the_host() -> None:
    """The DLedger ports of three brokers on one host, of which one listens on 20911."""
    brokers = [broker(number) for number in range(2)]
    text = "brokerName=b0\nbrokerClusterName=c0\nlistenPort=20911\nstorePathRootDir=/data/n2\n"
    odd = evolve(
        broker(2), configuration=parse_broker_configuration(text, "/etc/n2.conf").configuration
    )
    peers = [each.peer for each in propose_group([*brokers, odd], lambda *_: True).group.members]
    assert peers[0] == "127.0.0.1:20913", "20911 listens, 20912 is its HA port, 20909 is fast"
    assert len(set(peers)) == 3


def test_a_proposal_keeps_the_ids_and_peers_of_a_switched_group() -> None:
    peers = "a7-10.0.0.1:1111;b8-10.0.0.2:2222"
    brokers = [
        broker(number, f"dLegerPeers={peers}\ndLegerSelfId={name}\ndLegerGroup=g\n")
        for number, name in enumerate(("a7", "b8"))
    ]
    found = propose_group(brokers, lambda each, port: True).group
    assert found.peers == peers and found.dledger_group == "g"
    assert [each.name for each in found.members] == ["a7", "b8"]


def test_brokers_of_two_groups_are_refused() -> None:
    with pytest.raises(RmqError, match=r"found brokerName b0 in /etc/n0\.conf, b1 in"):
        propose_group([broker(0), broker(1, "brokerName=b1\n")], lambda each, port: True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("peer =", "pear ="), "the key pear.*did you mean peer?"),
        (lambda text: text.replace("[group]", "[grup]"), "found grup.*did you mean group?"),
        (lambda text: text.replace('id = "n0"', "id = 0"), "found id = 0, expected a text"),
        (lambda text: text.replace('id = "n1"', 'id = "n0"'), "the id n0 for n0 and n1"),
        (lambda text: text.replace('"SYNC_MASTER"', '"SYNC_MASTR"'), "did you mean SYNC_MASTER?"),
        (lambda text: text.replace('"SYNC_MASTER"', '"SLAVE"'), "found none as master"),
        (lambda text: text.replace("127.0.0.1:20911", "20911"), "found peer = 20911"),
        (lambda text: text.replace('"/data/n1"', '"data/n1"'), "expected an absolute path"),
        (lambda text: text.replace('"/data/n1"', '"/data/n0"'), "the directory /data/n0"),
        (lambda text: text.replace('"local"', '"far"'), "found host = far"),
        (lambda text: text + "[group", "not TOML"),
        (lambda text: text.replace('directory = "/data/n2"', ""), "found no key directory"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(change: Callable[[str], str], message: str) -> None:
    text = group_file_text(group())
    changed = change(text)
    assert changed != text
    with pytest.raises(RmqError, match=message):
        parse_group_file(changed, "group.toml")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("listenPort=1\n", "found listenPort=1 in /etc/n0.conf, expected 10911"),
        ("storePathRootDir=/other\n", "found storePathRootDir=/other"),
        ("brokerName=b1\n", "found brokerName=b1"),
        ("brokerRole=SLAVE\n", "found brokerRole=SLAVE"),
        ("enableDLegerCommitLog=true\ndLegerPeers=n0-h:1;n1-h:2\n", "found dLegerPeers=n0-h:1"),
    ],
)
def test_a_changed_broker_conf_contradicts_the_file(more: str, message: str) -> None:
    whole = group()
    member = whole.members[0]
    assert not list(contradictions(whole, member, broker(0).keys))
    changed = {**broker(0).keys, **dict(line.split("=", 1) for line in more.splitlines())}
    (text,) = contradictions(whole, member, changed)
    assert message in text and "rmqpy upgrade init --force" in text


def test_peers_in_another_order_are_no_contradiction() -> None:
    whole = group()
    peers = ";".join(reversed(whole.peers.split(";")))
    keys = {**broker(0).keys, "enableDLegerCommitLog": "true", "dLegerPeers": peers}
    assert not list(contradictions(whole, whole.members[0], keys))
