"""The limits of bytes that wait for peers: for one, and for all."""

from __future__ import annotations

from attrs import define, field

from rmqpy.net.unsent import UnsentBytes


@define(eq=False)
class Peer:
    """A peer with ``waiting`` bytes, and the numbers with which it was disconnected."""

    waiting: int = 0
    disconnected: list[tuple[int, int]] = field(factory=list)

    def transport_bytes(self) -> int:
        return self.waiting

    def disconnect_unread(self, waiting: int, waiting_for_all: int) -> None:
        self.disconnected.append((waiting, waiting_for_all))


def count(unsent: UnsentBytes, peer: Peer, waiting: int) -> None:
    peer.waiting = waiting
    unsent.update(peer, 100, 200)


def test_the_sum_follows_every_peer_until_it_has_read() -> None:
    unsent, one, other = UnsentBytes(), Peer(), Peer()
    count(unsent, one, 40)
    count(unsent, other, 30)
    count(unsent, one, 60)
    assert unsent.total == 90
    count(unsent, one, 0)
    unsent.forget(other)
    unsent.forget(other)
    assert (unsent.total, unsent.disconnected) == (0, 0)


def test_a_peer_above_its_own_limit_is_disconnected() -> None:
    unsent, one, other = UnsentBytes(), Peer(), Peer()
    count(unsent, other, 100)
    count(unsent, one, 101)
    assert (one.disconnected, other.disconnected) == ([(101, 201)], [])
    assert (unsent.total, unsent.disconnected) == (100, 1)


def test_the_peers_with_the_most_bytes_are_disconnected_for_the_sake_of_all() -> None:
    unsent, slow, writer = UnsentBytes(), Peer(), Peer()
    greedy = [Peer(), Peer()]
    count(unsent, slow, 10)
    for each in greedy:
        count(unsent, each, 90)
    count(unsent, writer, 20)
    assert [each.disconnected for each in greedy] == [[(90, 210)], []]
    assert not slow.disconnected and not writer.disconnected
    assert (unsent.total, unsent.disconnected) == (120, 1)


def test_bytes_that_have_left_unnoticed_disconnect_nobody() -> None:
    unsent, reader, writer = UnsentBytes(), Peer(), Peer()
    count(unsent, reader, 100)
    count(unsent, writer, 90)
    reader.waiting = 5
    assert unsent.total == 190  # the transport has not reported it
    count(unsent, writer, 95)
    assert unsent.total == 195
    count(unsent, writer, 100)
    count(unsent, Peer(), 50)
    assert (unsent.total, unsent.disconnected) == (155, 0)
