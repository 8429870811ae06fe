"""The keys of Java's DLedgerConfig. The Java broker fixes them at their defaults; here a file may
set them, and a Java broker ignores the lines.

How a line is read: config_keys.py. All members of a group should have the same values.
"""

from __future__ import annotations

from attrs import define

from rmqpy.config.keys import key

_MIB = 1024 * 1024


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class DLedgerSettings:
    """Java DLedgerConfig, as far as it is about the group."""

    enable_leader_elector: bool = key(
        "enableLeaderElector",
        default=True,
        doc="Take part in elections; without it the member has no role.",
    )
    heart_beat_time_interval_ms: int = key(
        "heartBeatTimeIntervalMs",
        default=2000,
        minimum=10,
        unit="ms",
        doc="A leader shows itself to the others so often.",
    )
    max_heart_beat_leak: int = key(
        "maxHeartBeatLeak",
        default=3,
        minimum=1,
        doc="Intervals without a sign of the leader after which another one is looked for.",
    )
    min_vote_interval_ms: int = key(
        "minVoteIntervalMs",
        default=300,
        minimum=1,
        unit="ms",
        doc="Shortest pause between two rounds of votes.",
    )
    max_vote_interval_ms: int = key(
        "maxVoteIntervalMs",
        default=1000,
        minimum=2,
        unit="ms",
        doc="Longest such pause; chance decides between the two.",
    )
    min_take_leadership_vote_interval_ms: int = key(
        "minTakeLeadershipVoteIntervalMs",
        default=30,
        minimum=1,
        unit="ms",
        doc="The same for a member that leadership is handed to.",
    )
    max_take_leadership_vote_interval_ms: int = key(
        "maxTakeLeadershipVoteIntervalMs",
        default=100,
        minimum=2,
        unit="ms",
        doc="The same for a member that leadership is handed to.",
    )
    max_pending_requests_num: int = key(
        "maxPendingRequestsNum",
        default=10_000,
        minimum=1,
        doc="Entries that may wait for their quorum; more are refused.",
    )
    max_wait_ack_time_ms: int = key(
        "maxWaitAckTimeMs",
        default=2500,
        minimum=1,
        unit="ms",
        doc="A sender is told after this time that no quorum has confirmed its message yet.",
    )
    max_push_time_out_ms: int = key(
        "maxPushTimeOutMs",
        default=1000,
        minimum=1,
        unit="ms",
        doc="An unanswered push is repeated after this time.",
    )
    max_batch_push_size: int = key(
        "maxBatchPushSize",
        default=4096,
        minimum=1,
        unit="B",
        doc="With isEnableBatchPush: a batch is sent once it has so many bytes, or all there is.",
    )
    peer_push_throttle_point: int = key(
        "peerPushThrottlePoint",
        default=300 * _MIB,
        minimum=1,
        unit="B",
        doc="A member that is behind by more gets no more than peerPushQuota.",
    )
    peer_push_quota: int = key(
        "peerPushQuota",
        default=20 * _MIB,
        minimum=1,
        unit="B/s",
        doc="What such a member gets.",
    )
    max_leadership_transfer_wait_index: int = key(
        "maxLeadershipTransferWaitIndex",
        default=1000,
        minimum=1,
        doc="Leadership is handed only to a member that is behind by fewer entries.",
    )
    leadership_transfer_wait_timeout: int = key(
        "leadershipTransferWaitTimeout",
        default=1000,
        minimum=1,
        unit="ms",
        doc="So long that member may take to catch up.",
    )
