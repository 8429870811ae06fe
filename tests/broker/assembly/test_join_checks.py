"""Groups of whole brokers in virtual time whose classic logs, below the DLedger log, differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from simulator.broker_cluster import BrokerCluster
from simulator.broker_host import BrokerHost
from simulator.checkers import GroupChecker
from simulator.host import member_host
from simulator.member_view import MemberView
from simulator.plan import GROUP_NAME, SimulationPlan
from simulator.records import BODY_AT, ENTRY_HEADER_BYTES

from rmqpy.audit.replicas.certificate import Certificate, Comparison, Subject
from rmqpy.broker.assembly.join_checks import PeerCertificateCheck
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.handshake import PeerHello
from rmqpy.dledger.protocol.json_bodies import decode_response, encode
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    Entry,
    PushEntryRequest,
    PushType,
    VoteRequest,
)
from rmqpy.dledger.state import DiskState, Role
from rmqpy.model.ids import Term
from rmqpy.net.dledger.handshakes import PeerStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

PLAN = SimulationPlan(seed=3, heartbeat_ms=300, old_messages=120, file_size=4096)
BORN_TIMESTAMP = 40
LOG = "/store/commitlog/"


def world_with(change: Callable[[BrokerHost], None], *names: str) -> BrokerCluster:
    """Return a cluster whose members all run, after ``change`` was made to the disks of some."""
    world = BrokerCluster(PLAN)
    world.make_old_log()
    for name in names:
        change(world.hosts[name])
    for host in world.hosts.values():
        host.on_event = lambda _name: None  # The invariants of the cluster do not hold here.
        host.start()
    return world


def change_born_timestamp(host: BrokerHost, number: int) -> None:
    """Change the born timestamp of the first message of a file, which no checksum covers."""
    host.disk.nodes[log_files(host)[number]].data[BORN_TIMESTAMP + 7] ^= 1


def log_files(host: BrokerHost) -> list[str]:
    return sorted(path for path in host.disk.nodes if path.startswith(LOG))


def remove(host: BrokerHost, prefix: str) -> None:
    for path in [path for path in host.disk.nodes if path.startswith(prefix)]:
        host.disk.unlink(path)


def wait_for_leader(world: BrokerCluster) -> BrokerHost:
    """Return the leader once all members have checked each other."""
    world.advance(15_000)
    leader = world.leader()
    assert leader is not None
    return leader


def peer_statuses(host: BrokerHost) -> dict[str, tuple[PeerStatus, str]]:
    assert host.running is not None and host.running.driver is not None
    ways = host.running.driver.peers.handshakes.links
    return {name: (way.standing, way.reason) for name, way in ways.items()}


def disk_of(host: BrokerHost) -> DiskState:
    assert host.running is not None and host.running.driver is not None
    return host.running.driver.disk


def role_of(host: BrokerHost) -> Role:
    assert host.running is not None and host.running.node is not None
    return host.running.node.role


def refused_by_all(world: BrokerCluster, name: str) -> str:
    """Return the reason with which all other members refuse this one."""
    reasons = set()
    for host in world.hosts.values():
        for other, (standing, reason) in peer_statuses(host).items():
            if name in (host.name, other):
                assert standing is PeerStatus.REFUSED, (host.name, other)
                if host.name != name:
                    reasons.add(reason)
            else:
                assert standing is PeerStatus.VERIFIED, (host.name, other)
    assert reasons
    return reasons.pop()


def test_a_difference_in_the_first_file_is_found_after_the_vote() -> None:
    """The last two files are compared before the vote, the others after it."""
    world = world_with(lambda host: change_born_timestamp(host, 0), "n2")
    odd = world.hosts["n2"]
    assert len(log_files(odd)) > 3
    leader = wait_for_leader(world)
    assert leader.name != "n2"
    reason = refused_by_all(world, "n2")
    assert "contains other messages, first in the file that begins at 0" in reason
    assert "rmqpy upgrade plan" in reason
    followers = [host for host in world.hosts.values() if host not in (leader, odd)]
    assert [role_of(host) for host in followers] == [Role.FOLLOWER], "a verified quorum works"
    assert role_of(odd) is Role.CANDIDATE
    assert [serves(host) for host in (leader, *followers)] == [True, True]
    assert not serves(odd), "its messages are not those of the group"


def serves(host: BrokerHost) -> bool:
    """Return whether a broker answers pulls and registers."""
    assert host.running is not None
    identity = host.running.broker.identity
    assert identity.is_readable is not bool(identity.diverged)
    return identity.is_readable


def test_the_digests_of_the_old_log_are_saved_and_exchanged() -> None:
    world = world_with(lambda _host: None)
    wait_for_leader(world)
    for host in world.hosts.values():
        assert {standing for standing, _ in peer_statuses(host).values()} == {PeerStatus.VERIFIED}
        kept = json.loads(bytes(host.disk.nodes["/store/rmqpy/old_log.json"].data))
        assert kept["digest"].count(",") == len(log_files(host)) - 1


def test_an_empty_member_is_refused_and_never_leads() -> None:
    world = world_with(lambda host: remove(host, "/store/"), "n0")
    leader = wait_for_leader(world)
    assert leader.name != "n0"
    assert "n0 has no old commit log" in refused_by_all(world, "n0")
    assert "rmqpy upgrade join DIR" in refused_by_all(world, "n0")


def test_a_repaired_member_is_accepted_at_once() -> None:
    saved: dict[str, bytes] = {}

    def change(host: BrokerHost) -> None:
        saved.update({path: bytes(node.data) for path, node in host.disk.nodes.items()})
        change_born_timestamp(host, -1)

    world = world_with(change, "n1")
    wait_for_leader(world)
    refused_by_all(world, "n1")
    odd = world.hosts["n1"]
    world.crash(odd, power=False)
    remove(odd, "/store/")
    for path, data in saved.items():
        odd.disk.put(path, data)
    odd.start()
    world.advance(3000)
    assert {standing for standing, _ in peer_statuses(odd).values()} == {PeerStatus.VERIFIED}
    assert role_of(odd) is Role.FOLLOWER and serves(odd)


# Members without config/


def test_a_member_without_tables_does_not_lead_before_it_has_them() -> None:
    def change(host: BrokerHost) -> None:
        remove(host, "/store/config/")

    world = world_with(change, "n0", "n1")
    leader = wait_for_leader(world)
    assert leader.name == "n2", "the only member that has topics and offsets"
    bare = world.hosts["n0"].running
    assert bare is not None
    assert disk_of(world.hosts["n0"]) is DiskState.LACKS_TABLES
    assert "/store/config/topics.json" not in world.hosts["n0"].disk.nodes
    bare.broker.metadata_sync._fetched.update((21, 43, 45, 201))
    world.advance(1000)
    assert disk_of(world.hosts["n0"]) is DiskState.GOOD
    assert "/store/config/topics.json" in world.hosts["n0"].disk.nodes


def test_no_member_leads_if_none_has_tables(caplog: pytest.LogCaptureFixture) -> None:
    world = world_with(lambda host: remove(host, "/store/config/"), "n0", "n1", "n2")
    world.advance(15_000)
    assert world.leader() is None
    assert any("copy config/ of the last master" in text for text in caplog.messages)


def test_a_member_whose_damaged_topics_have_a_backup_has_tables() -> None:
    """The damaged file is moved away, and the backup takes its place with the next change."""

    def change(host: BrokerHost) -> None:
        path = "/store/config/topics.json"
        host.disk.put(f"{path}.bak", bytes(host.disk.nodes[path].data))
        host.disk.put(path, b"{")

    world = world_with(change, "n0", "n1", "n2")
    wait_for_leader(world)
    for host in world.hosts.values():
        assert disk_of(host) is DiskState.GOOD


# Java members


def java_answers(host: BrokerHost, member: str) -> tuple[PeerStatus, str]:
    """Return the status and reason of a member that answers the handshake as Java does."""
    assert host.running is not None and host.running.driver is not None
    peers = host.running.driver.peers
    peers.handshakes._introduced(peers.handshakes.links[member], RemotingCommand(3, flag=1), None)
    return peer_statuses(host)[member]


def test_a_java_member_without_a_certificate_is_refused() -> None:
    world = world_with(lambda _host: None)
    leader = wait_for_leader(world)
    follower = next(host for host in world.hosts.values() if host is not leader)
    standing, reason = java_answers(follower, leader.name)
    assert standing is PeerStatus.REFUSED
    assert f"{leader.name} is a Java member" in reason and "there is no certificate" in reason
    assert "rmqpyAcceptUnverifiedPeers=true" in reason
    assert follower.running is not None and follower.running.driver is not None
    before = follower.running.driver.node.term
    request = VoteRequest(
        group="simulated", remote_id=follower.name, leader_id=leader.name, term=Term(before + 5)
    )
    channel = MemoryChannel((member_host(0), 50000))
    command = RemotingCommand.request(request.CODE, body=encode(request))
    follower.running.driver.handle(channel, [command])
    (answer,) = channel.take()
    code = decode_response(VoteRequest, answer.body).code
    assert code == DLedgerResponseCode.UNEXPECTED_MEMBER
    assert follower.running.driver.node.term == before, "its vote request is ignored"


OWN = PeerHello(
    group="g",
    member="n0",
    file_size=4096,
    divided_offset=8192,
    old_log_end=8000,
    old_log_digest="aa,bb",
    end_index=-1,
    peers={},
)


def subject(name: str, **changes: Any) -> Subject:
    values: dict[str, Any] = {
        "begin": 0,
        "end": 8000,
        "messages": 9,
        "queued": 9,
        "by_queue": 9,
        "by_id": 9,
        "keys": 0,
        "keys_found": 0,
        "digest": "",
        "divided_offset": 8192,
        "old_log_end": 8000,
        "old_log_digest": "aa,bb",
    }
    return Subject(name=name, **{**values, **changes})


@pytest.mark.parametrize(
    ("subjects", "reason"),
    [
        ([subject("n0"), subject("n1")], ""),
        ([subject("n0"), subject("n1", old_log_digest="aa,bb,cc")], ""),
        ([subject("n0"), subject("n2")], "the certificate is about n0, n2"),
        ([subject("n0"), subject("n1", old_log_digest="")], "does not describe its old log"),
        ([subject("n0"), subject("n1", old_log_digest="aa,xx")], "contains other messages"),
        ([subject("n0"), subject("n1", old_log_end=7000)], "differ from offset 7000 on"),
        ([subject("n0"), subject("n1", by_queue=8)], "says DIFFERENT"),
    ],
)
def test_a_certificate_admits_only_members_that_it_proves_equal(
    subjects: list[Subject], reason: str
) -> None:
    files = MemoryFiles()
    compared = Comparison(
        reference="n0",
        other="n1",
        same=9,
        moved=0,
        missing=0,
        different=0,
        undecided=0,
        expired=0,
        more=0,
    )
    certificate = Certificate(made_ms=1, subjects=tuple(subjects), comparisons=(compared,))
    files.put("/s/rmqpy/certificate.json", certificate.encode(b"secret"))
    files.put("/key", b"secret\n")
    files.put("/other", b"other")
    for key in (None, "/key"):
        settings = StoreSettings(store_path_root_dir="/s", rmqpy_certificate_key=key)
        found = PeerCertificateCheck(files, settings, lambda: OWN).reason_not_trusted("n1")
        assert reason in found and bool(reason) == bool(found)
    settings = StoreSettings(store_path_root_dir="/s", rmqpy_certificate_key="/other")
    found = PeerCertificateCheck(files, settings, lambda: OWN).reason_not_trusted("n1")
    assert "not signed with the key in other" in found
    settings = StoreSettings(store_path_root_dir="/s", rmqpy_certificate_key="/none")
    assert "no such file" in PeerCertificateCheck(files, settings, lambda: OWN).reason_not_trusted(
        "n1"
    )
    word = StoreSettings(store_path_root_dir="/none", rmqpy_accept_unverified_peers=True)
    assert PeerCertificateCheck(files, word, lambda: OWN).reason_not_trusted("n1") == ""


@pytest.mark.slow
def test_a_member_that_was_away_until_its_log_expired_starts_over() -> None:
    """Its old log is removed with its entries, whatever the age of the files by its own clock."""
    world = BrokerCluster(evolve(PLAN, old_messages=5, queues=1))
    world.begin()
    leader = wait_for_leader(world)
    away = next(host for host in world.hosts.values() if host is not leader)
    send(world, 3)
    world.crash(away, power=False)
    for _ in range(3):
        send(world, 30)
        world.expire_files()
        away.skew_ms = 0
        world.advance(10_000)
    assert not log_files(leader) and log_files(away)
    world.start(away)
    world.advance(10_000)
    assert not log_files(away) and away.running is not None and leader.running is not None
    assert away.running.store.health.failure is None and away.running.driver is not None
    assert any("old commit log" in text for _, text in away.running.driver.events)
    low = leader.running.store.log.min_offset
    assert away.running.store.log.min_offset == low > 0
    world.crash(away, power=False)
    world.start(away)
    world.producer.start()
    world.settle()
    world.read_all()


@pytest.mark.slow
@pytest.mark.parametrize("old_messages", [0, 5])
def test_damage_in_files_that_have_expired_elsewhere_is_removed(old_messages: int) -> None:
    """No member has a copy of the damaged entry. While it existed, nothing after it could be read
    and no file could expire.
    """
    world = BrokerCluster(evolve(PLAN, old_messages=old_messages, queues=1))
    world.begin()
    leader = wait_for_leader(world)
    host = next(each for each in world.hosts.values() if each is not leader)
    send(world, 40)
    world.advance(2000)
    host.disk.written_back()
    data = sorted(path for path in host.disk.nodes if "/data/" in path)
    assert len(data) > 3
    world.crash(host, power=False)
    size = PLAN.file_size
    entry = next(each for each in view_of(world, host).entries if each.position >= 2 * size)
    position = entry.position % size
    path = f"{data[0].rpartition('/')[0]}/{entry.position - position:020d}"
    host.disk.flip(path, position + ENTRY_HEADER_BYTES + BODY_AT, 1, entry.index)
    world.expire_files()
    send(world, 2)
    world.advance(10_000)
    host.skew_ms = 0
    world.start(host)
    assert host.running is not None and host.running.driver is not None
    assert host.running.driver.damaged and host.running.store.log.confirm_offset <= entry.position
    world.advance(15_000)
    assert not host.running.driver.damaged and not log_files(host)
    assert host.running.store.log.min_offset > entry.position
    world.producer.start()
    world.settle()
    world.read_all()


def view_of(world: BrokerCluster, host: BrokerHost) -> MemberView:
    assert isinstance(world.checker, GroupChecker)
    return world.checker.views[host.name]


def send(world: BrokerCluster, count: int) -> None:
    goal = world.producer.stored + count
    while world.producer.stored < goal:
        world.producer.send()
        world.advance(50)


@pytest.mark.parametrize(("index", "files"), [(0, 2), (5, -1)])
def test_a_leader_whose_log_does_not_start_after_the_old_one_is_refused(
    index: int, files: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Entry 0 starts where the old log ends, so another divided offset means another group. Nothing
    is lost.
    """
    world = BrokerCluster(evolve(PLAN, old_messages=20))
    world.begin()
    leader = wait_for_leader(world)
    host = next(each for each in world.hosts.values() if each is not leader)
    assert host.running is not None and host.running.driver is not None and leader.running
    divided = host.running.store.opened.divided_offset
    assert divided is not None and divided >= PLAN.file_size
    before = {path: host.disk.read_bytes(path) for path in log_files(host)}
    body = bytes(100)
    position = divided + files * PLAN.file_size
    term = host.running.driver.node.term
    entry = Entry.of(index, term, position, body)
    request = PushEntryRequest(
        group=GROUP_NAME, remote_id=host.name, local_id=leader.name, leader_id=leader.name,
        term=term, type=PushType.TRUNCATE, commit_index=-1, entries=(entry,),
    )  # fmt: skip
    command = RemotingCommand.request(request.CODE, body=encode(request))
    host.running.driver.handle(MemoryChannel((member_host(0), 50000)), [command])
    assert "rmqpy upgrade join" in str(host.running.store.health.failure)
    assert {path: host.disk.read_bytes(path) for path in log_files(host)} == before
