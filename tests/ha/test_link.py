"""Tests of the two ends of a link, each on its own: where a transfer starts, what is sent when,
and why a link closes.
"""

from __future__ import annotations

import pytest

from rmqpy.ha.follower import ReconnectBackoff, SlaveLink, SlaveReady
from rmqpy.ha.frames import (
    BODY_MAX,
    TransferFrame,
    TransferReceiver,
    encode_report,
    encode_transfer,
)
from rmqpy.ha.link import LinkSettings, LogRange, MasterLink, MasterReady
from rmqpy.model.ids import PhysicalOffset

FILE = 1000
SETTINGS = LinkSettings(file_size=FILE, transfer_batch_size=300)


def log_bytes(offset: int, size: int) -> bytes:
    return bytes((offset + number) % 251 for number in range(size))


def log(end: int, begin: int = 0) -> LogRange:
    return LogRange(PhysicalOffset(begin), PhysicalOffset(end))


def master(end: int, begin: int = 0) -> MasterLink:
    return MasterLink(SETTINGS, log(end, begin), log_bytes, 0)


def slave(end: int, begin_at: int | None = None) -> SlaveLink:
    place = None if begin_at is None else PhysicalOffset(begin_at)
    return SlaveLink(SETTINGS, PhysicalOffset(end), 0, begin_at=place)


def sent_by(link: MasterLink, room: int = 1 << 20) -> list[tuple[int, int]]:
    """Return offset and size of each transfer that the master is ready to send."""
    ready = link.take_ready(room)
    receiver = TransferReceiver()
    found = [each for frame in (ready.send if ready else ()) for each in receiver.receive(frame)]
    for each in found:
        assert each.body == log_bytes(each.offset, len(each.body))
    return [(each.offset, len(each.body)) for each in found]


# ---------------------------------------------------------------------------------------- master


@pytest.mark.parametrize(
    ("end", "reported", "frames"),
    [
        (2500, 0, [(2000, 300), (2300, 200)]),
        (2000, 0, []),
        (700, 0, [(0, 300), (300, 300), (600, 100)]),
        (0, 0, []),
        (2500, 2400, [(2400, 100)]),
        (2500, 2500, []),
        (1200, 650, [(650, 300), (950, 50), (1000, 200)]),
        (1000, 1, [(1, 300), (301, 300), (601, 300), (901, 99)]),
    ],
)
def test_a_master_starts_where_the_report_demands(
    end: int, reported: int, frames: list[tuple[int, int]]
) -> None:
    link = master(end)
    assert sent_by(link) == []
    link.receive(encode_report(reported), 10)
    assert sent_by(link) == frames
    assert link.next_offset == end
    assert sent_by(link) == []


def test_growth_is_sent_as_far_as_the_room_allows() -> None:
    link = master(0)
    link.receive(encode_report(0), 0)
    assert link.take_ready() is None
    link.log_grown(log(2500), 5)
    assert sent_by(link, room=0) == []
    assert sent_by(link, room=1) == [(0, 300)]
    assert sent_by(link, room=400) == [(300, 300), (600, 300)]
    assert sent_by(link, room=1 << 20) == [
        *[(900, 100), (1000, 300), (1300, 300), (1600, 300), (1900, 100)],
        *[(2000, 300), (2300, 200)],
    ]


def test_acknowledgements_only_grow() -> None:
    link = master(900)
    link.receive(encode_report(0), 0)
    assert link.take_ready() == MasterReady(
        send=tuple(encode_transfer(n, log_bytes(n, 300)) for n in (0, 300, 600))
    )
    link.receive(encode_report(300) + encode_report(600)[:3], 1)
    assert link.take_ready() == MasterReady(acknowledged=PhysicalOffset(300))
    link.receive(encode_report(600)[3:] + encode_report(900), 2)
    assert link.take_ready() == MasterReady(acknowledged=PhysicalOffset(900))
    link.receive(encode_report(600), 3)
    assert link.take_ready() is None
    assert link.acknowledged_offset == 900


def test_the_first_report_of_a_slave_with_a_log_is_an_acknowledgement() -> None:
    link = master(900)
    link.receive(encode_report(900), 0)
    assert link.take_ready() == MasterReady(acknowledged=PhysicalOffset(900))


def test_an_idle_master_sends_heartbeats() -> None:
    link = master(900)
    link.tick(9_000)
    assert sent_by(link) == []  # Nothing is sent before the first report.
    link.receive(encode_report(900), 9_100)
    assert sent_by(link) == [(900, 0)]
    for now_ms, frames in ((14_099, []), (14_100, [(900, 0)]), (14_200, []), (19_100, [(900, 0)])):
        link.tick(now_ms)
        assert sent_by(link) == frames
    link.log_grown(log(950), 19_200)
    assert sent_by(link) == [(900, 50)]
    link.tick(24_199)
    assert sent_by(link) == []
    link.tick(24_200)
    assert sent_by(link) == [(950, 0)]


def test_a_silent_slave_is_disconnected() -> None:
    link = master(900)
    link.tick(19_999)
    assert link.closed is None
    link.receive(encode_report(0)[:1], 19_999)  # One byte is a sign of life.
    link.tick(39_998)
    assert link.closed is None
    link.tick(39_999)
    assert link.take_ready() == MasterReady(close="the slave has been silent for 20000 ms")
    link.receive(encode_report(0), 40_000)
    assert link.take_ready() is None


@pytest.mark.parametrize(
    ("begin", "reports", "reason"),
    [
        (0, [901], "the slave's log ends at 901, after the end of ours (900)"),
        (0, [0, 901], "the slave's log ends at 901, after the end of ours (900)"),
        (0, [0, 500], "the slave reports 500, but only bytes up to 300 were sent"),
        (500, [499], "the slave's log ends at 499, ours begins at 500"),
        (0, [-1], "the slave reports the invalid offset -1"),
        (0, [1 << 62], "after the end of ours (900)"),
    ],
)
def test_an_impossible_report_closes_the_link(begin: int, reports: list[int], reason: str) -> None:
    link = master(900, begin)
    ready = None
    for number, reported in enumerate(reports):
        link.receive(encode_report(reported), number)
        ready = link.take_ready(max_bytes=1)
    assert ready is not None and ready.close is not None and reason in ready.close
    assert ready.send == ()
    assert ready.acknowledged is None
    link.log_grown(log(2000), 10)
    assert link.take_ready() is None  # The reason is reported once; nothing follows it.


def test_a_slave_is_disconnected_when_the_file_it_reads_expires() -> None:
    expired = False

    def reader(offset: int, size: int) -> bytes | None:
        return None if expired else log_bytes(offset, size)

    link = MasterLink(SETTINGS, log(2500), reader, 0)
    link.receive(encode_report(10), 0)
    assert sent_by(link, room=1) == [(10, 300)]
    expired = True
    link.log_grown(log(2500, begin=1000), 1)
    ready = link.take_ready()
    assert ready is not None and ready.close is not None
    assert "no longer has the offset 310" in ready.close


def test_a_batch_is_limited_to_the_buffer_of_a_java_slave() -> None:
    settings = LinkSettings(file_size=16 << 20, transfer_batch_size=8 << 20)
    link = MasterLink(settings, log(5 << 20), lambda offset, size: bytes(size), 0)
    link.receive(encode_report(1), 0)
    ready = link.take_ready(max_bytes=1 << 30)
    assert ready is not None
    assert [len(frame) for frame in ready.send] == [4 << 20, (5 << 20) - 1 - BODY_MAX + 12]


# ----------------------------------------------------------------------------------------- slave


def test_a_slave_reports_when_it_connects() -> None:
    assert slave(0).take_ready() == SlaveReady(send=encode_report(0))
    assert slave(1234).take_ready() == SlaveReady(send=encode_report(1234))
    assert slave(0, begin_at=3000).take_ready() == SlaveReady(send=encode_report(3000))
    assert slave(50, begin_at=3000).take_ready() == SlaveReady(send=encode_report(50))
    with pytest.raises(AssertionError):
        slave(0, begin_at=3001)


def test_a_slave_that_starts_at_0_requests_the_second_byte() -> None:
    link = slave(0, begin_at=0)
    assert link.take_ready() == SlaveReady(send=encode_report(1))
    link.receive(encode_transfer(1) + encode_transfer(1, b"a" * 20) + encode_transfer(21, b"b"), 1)
    ready = link.take_ready()
    assert ready is not None and ready.close is None
    assert [(each.offset, each.body) for each in ready.append] == [
        (0, b"\0" + b"a" * 20),
        (21, b"b"),
    ]
    other = slave(0, begin_at=0)
    other.receive(encode_transfer(1000, b"a"), 1)
    refused = other.take_ready()
    assert refused is not None and "requested from 0" in (refused.close or "")
    assert not refused.append
    assert slave(7, begin_at=0).take_ready() == SlaveReady(send=encode_report(7))


def test_a_slave_reports_the_end_of_what_it_stored() -> None:
    link = slave(500)
    link.take_ready()
    data = encode_transfer(500, b"a" * 300) + encode_transfer(800, b"b" * 200)
    link.receive(data + encode_transfer(1000, b"c" * 10), 10)
    ready = link.take_ready()
    assert ready is not None
    assert [(each.offset, len(each.body)) for each in ready.append] == [
        *[(500, 300), (800, 200), (1000, 10)]
    ]
    assert ready.send == b""  # It reports only what is in the log.
    link.stored(PhysicalOffset(800), 11)
    link.stored(PhysicalOffset(1010), 12)
    assert link.take_ready() == SlaveReady(send=encode_report(1010))
    assert link.was_of_use


def test_a_slave_reports_every_five_seconds() -> None:
    link = slave(500)
    link.take_ready()
    for now_ms in (4_999, 5_000, 6_000, 9_999, 10_000):
        link.receive(encode_transfer(500), now_ms)  # A heartbeat of the master.
        link.tick(now_ms)
        report = SlaveReady(send=encode_report(500)) if now_ms in (5_000, 10_000) else None
        assert link.take_ready() == report
    link.receive(encode_transfer(500, b"x"), 12_000)
    link.take_ready()
    link.stored(PhysicalOffset(501), 12_000)
    assert link.take_ready() == SlaveReady(send=encode_report(501))
    link.tick(16_999)
    assert link.take_ready() is None
    link.tick(17_000)
    assert link.take_ready() == SlaveReady(send=encode_report(501))


def test_an_observer_reports_what_it_requested_first_and_nothing_else() -> None:
    """A master takes every report for an acknowledgement."""
    link = SlaveLink(SETTINGS, PhysicalOffset(1700), 0, observer=True)
    assert link.take_ready() == SlaveReady(send=encode_report(1700))
    link.receive(encode_transfer(1700, log_bytes(1700, 300)), 10)
    ready = link.take_ready()
    assert ready is not None and [each.end for each in ready.append] == [2000]
    assert ready.send == b""
    link.stored(PhysicalOffset(2000), 20)
    assert link.take_ready() is None
    link.tick(SETTINGS.heartbeat_interval_ms)
    assert link.take_ready() == SlaveReady(send=encode_report(1700))


@pytest.mark.parametrize("start", [0, 1000, 7000])
def test_an_empty_slave_starts_at_the_start_of_any_file(start: int) -> None:
    link = slave(0)
    link.take_ready()
    link.receive(encode_transfer(start) + encode_transfer(start, b"abc"), 1)
    assert link.take_ready() == SlaveReady(append=(TransferFrame(PhysicalOffset(start), b"abc"),))
    link.receive(encode_transfer(start + 3, b"d"), 2)
    assert link.closed is None


@pytest.mark.parametrize(
    ("end", "frame", "reason"),
    [
        (500, encode_transfer(501, b"x"), "continues at 501, our log ends at 500"),
        (500, encode_transfer(0, b"x"), "continues at 0, our log ends at 500"),
        (500, encode_transfer(1000, b"x"), "continues at 1000, our log ends at 500"),
        (500, encode_transfer(499), "continues at 499, our log ends at 500"),
        (0, encode_transfer(1, b"x"), "begins at 1, which is not the start of a file of 1000"),
        (500, encode_transfer(500, bytes(501)), "501 bytes at 500, across the end of a file"),
        (0, encode_transfer(1000, bytes(1001)), "1001 bytes at 1000, across the end of a file"),
        (500, b"\xff" * 12, "the master sends -1 bytes"),
    ],
)
def test_bytes_that_do_not_continue_the_log_close_the_link(
    end: int, frame: bytes, reason: str
) -> None:
    link = slave(end)
    link.take_ready()
    link.receive(frame + encode_transfer(end, b"good"), 1)
    ready = link.take_ready()
    assert ready is not None and ready.close is not None and reason in ready.close
    assert ready.append == ()
    link.receive(encode_transfer(end, b"good"), 2)
    link.tick(50_000)
    assert link.take_ready() is None


def test_transfers_before_an_invalid_one_are_stored() -> None:
    link = slave(500)
    link.take_ready()
    link.receive(encode_transfer(500, b"good") + encode_transfer(9, b"bad"), 1)
    ready = link.take_ready()
    assert ready is not None
    assert ready.append == (TransferFrame(PhysicalOffset(500), b"good"),)
    assert ready.close is not None
    link.stored(PhysicalOffset(504), 2)
    assert link.take_ready() is None


def test_a_silent_master_is_left() -> None:
    link = slave(500)
    for now_ms in range(0, 20_000, 1_000):
        link.tick(now_ms)
    assert link.closed is None
    link.take_ready()
    link.tick(20_000)
    assert link.take_ready() == SlaveReady(close="the master has been silent for 20000 ms")
    other = slave(500)
    other.receive(encode_transfer(500)[:1], 15_000)  # One byte is a sign of life.
    other.tick(34_999)
    assert other.closed is None
    other.tick(35_000)
    assert other.closed is not None


def test_only_received_bytes_can_be_reported_as_stored() -> None:
    link = slave(500)
    with pytest.raises(AssertionError):
        link.stored(PhysicalOffset(501), 1)


def misfit_link() -> SlaveLink:
    link = slave(500)
    link.receive(encode_transfer(400, b"x"), 1)
    assert link.closed is not None and "diverged" in link.closed
    return link


def test_a_slave_backs_off_from_a_master_whose_log_does_not_fit() -> None:
    backoff = ReconnectBackoff()
    pauses = [backoff.after(misfit_link()) for _ in range(8)]
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


@pytest.mark.parametrize("link", [None, slave(500)], ids=["no connection", "closed at once"])
def test_a_master_that_was_down_from_the_beginning_is_found_within_two_seconds(
    link: SlaveLink | None,
) -> None:
    """The pauses do not depend on whether a link has ever worked."""
    backoff = ReconnectBackoff()
    assert [backoff.after(link) for _ in range(6)] == [200, 400, 800, 1_500, 1_500, 1_500]


def test_a_master_that_is_down_after_a_refusal_is_found_within_two_seconds() -> None:
    """It may have been stopped to be aligned, and the next one checked may be another log."""
    backoff = ReconnectBackoff()
    refused = [backoff.after_refusal() for _ in range(10)]
    assert refused[-1] == 60_000
    assert [backoff.after(None) for _ in range(5)] == [200, 400, 800, 1_500, 1_500]
    assert backoff.after_refusal() == 1_000


def useful_link() -> SlaveLink:
    link = slave(500)
    link.receive(encode_transfer(500, b"x"), 1)
    link.stored(PhysicalOffset(501), 1)
    return link


def idle_link() -> SlaveLink:
    link = slave(500)
    link.receive(encode_transfer(500), 1)
    return link


@pytest.mark.parametrize("link", [useful_link(), idle_link()], ids=["useful", "idle"])
def test_a_master_that_is_restarted_is_found_again_within_two_seconds(link: SlaveLink) -> None:
    backoff = ReconnectBackoff()
    pauses = [backoff.after(link), *(backoff.after(None) for _ in range(30))]
    assert min(pauses) > 0 and max(pauses) <= 1_500
    assert pauses[:4] == [200, 400, 800, 1_500]


def test_a_link_that_breaks_at_once_again_and_again_does_not_lead_to_a_busy_loop() -> None:
    backoff = ReconnectBackoff()
    assert min(backoff.after(useful_link()) for _ in range(10)) >= 200
    idle = [backoff.after(idle_link()) for _ in range(10)]
    assert idle[-1] == 1_500


def test_a_master_that_is_refused_is_checked_less_and_less_often() -> None:
    backoff = ReconnectBackoff()
    backoff.after(useful_link())
    assert [backoff.after_refusal() for _ in range(3)] == [1_000, 2_000, 4_000]


def test_slaves_do_not_all_return_at_the_same_time() -> None:
    early = ReconnectBackoff(lambda below: below - 1)
    assert early.after(None) == 151 and early.after_refusal() == 751
