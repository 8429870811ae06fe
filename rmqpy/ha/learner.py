"""The master of a controller group as seen by a learner: a neutral observer of 5.x.

::

    handshaking ──handshake──► following ──► closed (reason)
         └────────────────────────────────►

A learner (``asyncLearner``) is never in the SyncStateSet and never elected. Its reports matter to
nobody but a master that counts connections (``inSyncReplicas`` above 1 without
``allAckInSyncStateSet``): they repeat the first offset, as those of an observer of a classic master
do (:class:`rmqpy.ha.follower.SlaveLink`). Its broker id is none that a controller gives.

The epochs decide whether the copy may go on. If those of the master and of the copy agree only up
to an offset before the end of the copy, the group has cut off what the copy has. If the master has
no epoch for the offset that is requested, it would answer with heartbeats only, for ever.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.codec.epochs import Epoch, common_end
from rmqpy.ha.autoswitch import (
    AutoSwitchReceiver,
    EpochTransfer,
    MasterEpochs,
    encode_slave_handshake,
    encode_slave_report,
)
from rmqpy.ha.follower import FollowerLink
from rmqpy.ha.frames import TransferFrame
from rmqpy.ha.link import LinkSettings
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset

NO_BROKER_ID: Final = -1
"""Controllers give ids from 1."""


@define(slots=True, frozen=True, kw_only=True)
class LearnedCopy:
    """What a learner has: the end of its copy (0: nothing), and the epochs of it, if known.

    ``begin`` is the first offset of the master's log. ``request`` is the offset from which bytes
    are requested; those before ``end`` are compared.
    """

    begin: int
    end: int
    request: int
    epochs: tuple[Epoch, ...] = ()


class LearnerLink(FollowerLink):
    """A connection that has just been opened."""

    def __init__(self, settings: LinkSettings, copy: LearnedCopy, now_ms: int) -> None:
        super().__init__(settings, now_ms, encode_slave_handshake(NO_BROKER_ID, learner=True))
        self._copy = copy
        self._receiver = AutoSwitchReceiver()
        self._next = copy.request or copy.begin
        self._is_following = False
        self.epochs: tuple[Epoch, ...] = ()
        """The epochs of the master, those that it has begun on this connection included."""
        self.confirm_offset = 0
        """The end of what every replica in the SyncStateSet has, as the master said last."""

    def stored(self, end: PhysicalOffset, now_ms: int) -> None:
        """Record that bytes up to ``end`` are in the copy. The master is not told."""
        assert end <= self._next, (end, self._next)
        super().stored(end, now_ms)

    def _process(self, data: bytes | bytearray | memoryview) -> None:
        for frame in self._receiver.receive(data):
            if isinstance(frame, MasterEpochs):
                self._begin(frame)
            else:
                self._take(frame)

    def _report_frame(self) -> bytes | None:
        return encode_slave_report(self._copy.request) if self._is_following else None

    def _begin(self, hello: MasterEpochs) -> None:
        """Compare the epochs of the master with those of the copy, and request the log."""
        if self._is_following:
            raise RemoteProtocolError("the master sends a second handshake")
        copy = self._copy
        if copy.epochs and copy.end:
            common = common_end(copy.epochs, copy.end, hello.epochs, hello.end)
            if common < copy.end:
                raise RemoteProtocolError(
                    f"the epochs of the master agree with those of the copy up to"
                    f" {max(common, 0)}, the copy ends at {copy.end}: another replica was elected"
                    " that did not have its end; remove the directory of the rehearsal, and repeat"
                )
        first = hello.epochs[0].start_offset if hello.epochs else None
        if first is None or self._next < first:
            has = "no epoch" if first is None else f"its first epoch begins at {first}"
            raise RemoteProtocolError(
                f"the log is requested from {self._next}, and the master has none that contains"
                f" it ({has}): it serves no replica that lacks older bytes (hazard C2)"
            )
        self.epochs = hello.epochs
        self._is_following = True
        self._report()

    def _take(self, transfer: EpochTransfer) -> None:
        if not self._is_following:
            raise RemoteProtocolError("the master sends a transfer before its handshake")
        self.has_worked = True
        self.confirm_offset = transfer.confirm_offset
        frame = transfer.frame
        if frame.is_heartbeat:
            return
        self._check(frame)
        self._check_epoch(transfer)
        self._next = frame.end
        self._append.append(frame)

    def _check(self, frame: TransferFrame) -> None:
        """Raise RemoteProtocolError for bytes that do not continue what was received."""
        if frame.offset != self._next:
            raise RemoteProtocolError(
                f"the master continues at {frame.offset}, expected {self._next}"
            )
        self._check_within_file(frame)

    def _check_epoch(self, transfer: EpochTransfer) -> None:
        """Raise RemoteProtocolError for bytes of an epoch that does not contain them.

        Java names the next epoch with the last bytes of the one before: ``transferDataToSlave`` of
        5.3.3 cuts a batch at the end of an epoch, goes on to the next one, and then writes the
        header.
        """
        epoch, frame = transfer.epoch, transfer.frame
        last = self.epochs[-1]
        if epoch.number > last.number and epoch.start_offset >= last.start_offset:
            self.epochs = (*self.epochs, epoch)
        elif epoch not in self.epochs:
            raise RemoteProtocolError(
                f"the master sends bytes of epoch {epoch}, and its last one is {last}"
            )
        following = next((each for each in self.epochs if each.number > epoch.number), None)
        end = following.start_offset if following is not None else frame.end
        if frame.end == epoch.start_offset:
            return
        if not epoch.start_offset <= frame.offset or frame.end > end:
            raise RemoteProtocolError(
                f"the master sends {frame.offset} to {frame.end} as bytes of epoch {epoch}"
                + (f", and epoch {following} follows it" if following is not None else "")
            )
