"""All keys of Java's DLedgerConfig. :mod:`rmqpy.config.keys` explains the declarations.

The Java broker always uses their defaults. In rmqpy a file may set them; a Java broker ignores
these lines. All members of a group should have the same values.
"""

from __future__ import annotations

from rmqpy.config.keys import key
from rmqpy.model.values import define

_MIB = 1024 * 1024


@define(frozen=True, kw_only=True, repr=False)
class DLedgerSettings:
    """Java DLedgerConfig, limited to the keys that concern the group."""

    # fmt: off
    enable_leader_elector: bool = key("enableLeaderElector", True,
        doc="Take part in elections; otherwise the member has no role.")
    heart_beat_time_interval_ms: int = key("heartBeatTimeIntervalMs", 2000, minimum=10, unit="ms",
        doc="Interval at which a leader sends heartbeats to the other members.")
    max_heart_beat_leak: int = key("maxHeartBeatLeak", 3, minimum=1,
        doc="Number of intervals without a heartbeat of the leader after which an election starts.")
    min_vote_interval_ms: int = key("minVoteIntervalMs", 300, minimum=1, unit="ms",
        doc="Shortest pause between two rounds of votes.")
    max_vote_interval_ms: int = key("maxVoteIntervalMs", 1000, minimum=2, unit="ms",
        doc="Longest such pause; the pause is chosen at random between the two.")
    min_take_leadership_vote_interval_ms: int = key("minTakeLeadershipVoteIntervalMs", 30,
        minimum=1, unit="ms",
        doc="The shortest pause for a member to which leadership is transferred.")
    max_take_leadership_vote_interval_ms: int = key("maxTakeLeadershipVoteIntervalMs", 100,
        minimum=2, unit="ms",
        doc="The longest pause for a member to which leadership is transferred.")
    max_pending_requests_num: int = key("maxPendingRequestsNum", 10_000, minimum=1,
        doc="Maximum number of entries that may wait for their quorum; more are refused.")
    max_wait_ack_time_ms: int = key("maxWaitAckTimeMs", 2500, minimum=1, unit="ms",
        doc="Time after which a sender is answered that no quorum has confirmed its message yet.")
    max_push_time_out_ms: int = key("maxPushTimeOutMs", 1000, minimum=1, unit="ms",
        doc="Time after which an unanswered push is repeated.")
    max_batch_push_size: int = key("maxBatchPushSize", 4096, minimum=1, unit="B",
        doc="With isEnableBatchPush: a batch is sent once it has this size, or once it contains "
            "every waiting entry.")
    flush_file_interval: int = key("flushFileInterval", 10, minimum=1, unit="ms",
        doc="Time between two flushes of the DLedger log; with SYNC_FLUSH, it is flushed at once.")
    peer_push_throttle_point: int = key("peerPushThrottlePoint", 300 * _MIB, minimum=1, unit="B",
        doc="A member that lags by more than this receives at most peerPushQuota.")
    peer_push_quota: int = key("peerPushQuota", 20 * _MIB, minimum=1, unit="B/s",
        doc="Rate at which such a member receives entries.")
    max_leadership_transfer_wait_index: int = key("maxLeadershipTransferWaitIndex", 1000, minimum=1,
        doc="Leadership is transferred only to a member that lags by fewer entries.")
    leadership_transfer_wait_timeout: int = key("leadershipTransferWaitTimeout", 1000, minimum=1,
        unit="ms", doc="How long that member may take to catch up.")
    # fmt: on
