"""All keys of Java's MessageStoreConfig, 4.9.7. :mod:`rmqpy.config.keys` explains the
declarations.
"""

from __future__ import annotations

from functools import cached_property

from attrs import Factory

from rmqpy.config.keys import (
    ADDRESS,
    DELAY_LEVELS,
    HOURS,
    ONE_FOLDER,
    STORE_TYPE,
    BrokerRole,
    DLedgerPeer,
    Effect,
    FlushDiskType,
    key,
    parse_delay_levels,
    parse_dledger_peers,
)
from rmqpy.model.values import define

MEMORY_STORE = "MEMORY"
"""The ``storeType`` of a store that does not survive the end of its broker."""

_ACCEPTED = Effect.ACCEPTED

CONSUME_QUEUE_UNIT_BYTES = 20


def _whole_units(size_bytes: int) -> int:
    return -(-size_bytes // CONSUME_QUEUE_UNIT_BYTES) * CONSUME_QUEUE_UNIT_BYTES


def _between_10_and_95(percent: int) -> int:
    return max(10, min(percent, 95))


def _between_35_and_90(percent: int) -> int:
    return max(35, min(percent, 90))


def _between_30_and_85(percent: int) -> int:
    return max(30, min(percent, 85))


@define(frozen=True, kw_only=True, repr=False)
class StoreSettings:
    """Java MessageStoreConfig: files, flushing, replication, delays, DLedger."""

    # fmt: off
    store_path_root_dir: str = key("storePathRootDir", "store",
        doc="Directory of the store; default: store in the home directory.")
    store_path_commit_log: str = key("storePathCommitLog",
        Factory(lambda self: f"{self.store_path_root_dir}/commitlog", takes_self=True),
        kind=ONE_FOLDER,
        doc="Directory of the classic commit log; default: commitlog in storePathRootDir.")
    store_path_dledger_commit_log: str | None = key("storePathDLedgerCommitLog", None,
        kind=ONE_FOLDER,
        doc="Directory of DLedger's data files; default: dledger-<dLegerSelfId>/data in "
            "storePathRootDir.")
    store_path_epoch_file: str | None = key("storePathEpochFile", None,
        doc="From 5.x: the file with the epochs of a controller group, which only the checks of "
            "stores read; default: epochFileCheckpoint in storePathRootDir.")
    store_path_broker_identity: str | None = key("storePathBrokerIdentity", None,
        doc="From 5.x: the file with the identity that a controller gave the broker, which only "
            "the checks of stores read; default: brokerIdentity in storePathRootDir.")
    read_only_commit_log_store_paths: str | None = key("readOnlyCommitLogStorePaths", None,
        effect=Effect.REFUSED,
        doc="Read-only commit log directories; a log spread over several directories is not "
            "supported.")
    mapped_file_size_commit_log: int = key("mappedFileSizeCommitLog", 1 << 30, minimum=1024,
        unit="bytes", doc="Size of a commit log file; existing files must have this size.")
    mapped_file_size_consume_queue: int = key("mappedFileSizeConsumeQueue",
        300_000 * CONSUME_QUEUE_UNIT_BYTES, minimum=1, unit="bytes", converter=_whole_units,
        doc="Size of a consume queue file, rounded up to a multiple of 20; existing files must "
            "have this size.")
    enable_consume_queue_ext: bool = key("enableConsumeQueueExt", False, effect=Effect.REFUSED,
        doc="Extension files for consume queue units; they are not supported.")
    mapped_file_size_consume_queue_ext: int = key("mappedFileSizeConsumeQueueExt", 48 << 20,
        unit="bytes", doc="Size of an extension file: audits expect it.")
    bit_map_length_consume_queue_ext: int = key("bitMapLengthConsumeQueueExt", 64, unit="bits",
        effect=_ACCEPTED,
        doc="Filter bits in an extension file (Java corrects it to 112 at start).")
    flush_interval_commit_log: int = key("flushIntervalCommitLog", 500, minimum=1, unit="ms",
        runtime=True, doc="ASYNC_FLUSH: time between two flushes of a classic commit log (a "
            "DLedger log has flushFileInterval).")
    commit_interval_commit_log: int = key("commitIntervalCommitLog", 200, unit="ms",
        effect=_ACCEPTED, doc="Only with transientStorePoolEnable.")
    use_reentrant_lock_when_put_message: bool = key("useReentrantLockWhenPutMessage", True,
        effect=_ACCEPTED, doc="Kind of Java's append lock; in rmqpy one thread appends.")
    flush_commit_log_timed: bool = key("flushCommitLogTimed", True, effect=_ACCEPTED,
        doc="Whether Java's flush thread sleeps or can be woken.")
    flush_interval_consume_queue: int = key("flushIntervalConsumeQueue", 1000, minimum=1, unit="ms",
        effect=_ACCEPTED, runtime=True,
        doc="Interval at which Java flushes consume queues with enough dirty pages; rmqpy flushes "
            "all of them every flushConsumeQueueThoroughInterval.")
    clean_resource_interval: int = key("cleanResourceInterval", 10000, minimum=1, unit="ms",
        doc="Time between two searches for files to delete.")
    delete_commit_log_files_interval: int = key("deleteCommitLogFilesInterval", 100, unit="ms",
        doc="Pause between two deletions of commit log files.")
    delete_consume_queue_files_interval: int = key("deleteConsumeQueueFilesInterval", 100,
        unit="ms", doc="Pause between two queues whose files are deleted.")
    destroy_maped_file_interval_forcibly: int = key("destroyMapedFileIntervalForcibly", 120000,
        unit="ms", effect=_ACCEPTED,
        doc="Time after which Java unmaps a file that is still being read; in rmqpy a deleted "
            "file stays readable.")
    redelete_hanged_file_interval: int = key("redeleteHangedFileInterval", 120000, unit="ms",
        doc="Time after which deletion of a file that could not be deleted is tried again; until "
            "then no other file is deleted.")
    delete_when: tuple[int, ...] = key("deleteWhen", (4,), kind=HOURS, runtime=True,
        doc="Hours of the day in which expired files are deleted.")
    disk_max_used_space_ratio: int = key("diskMaxUsedSpaceRatio", 75, unit="percent", runtime=True,
        clamp=_between_10_and_95,
        doc="Disk usage above which expired files are deleted at any hour; clamped to 10 … 95.")
    file_reserved_time: int = key("fileReservedTime", 72, unit="h", runtime=True,
        doc="Age at which a commit log file expires and a half message is discarded.")
    disk_space_warning_level_ratio: int = key("diskSpaceWarningLevelRatio", 90, unit="percent",
        runtime=True, clamp=_between_35_and_90,
        doc="From 5.x (a system property in 4.9): disk usage above which sends are refused and "
            "log files are deleted before they expire; clamped to 35 … 90.")
    disk_space_clean_forcibly_ratio: int = key("diskSpaceCleanForciblyRatio", 85, unit="percent",
        runtime=True, clamp=_between_30_and_85,
        doc="From 5.x (a system property in 4.9): disk usage above which log files are deleted "
            "before they expire, if cleanFileForciblyEnable is set; clamped to 30 … 85.")
    put_msg_index_hight_water: int = key("putMsgIndexHightWater", 600000, effect=_ACCEPTED,
        doc="Not used by Java 4.9.7 either.")
    max_message_size: int = key("maxMessageSize", 4 << 20, minimum=1, unit="bytes", runtime=True,
        doc="Maximum size of a body, and of a record, that is stored.")
    check_crc_on_recover: bool = key("checkCRCOnRecover", True,
        doc="Verify the CRCs of bodies when the store is opened.")
    enabled_append_prop_crc: bool = key("enabledAppendPropCRC", False,
        doc="From 5.x: write a checksum over the whole record as its last property, in a classic "
            "log; sends then take the slower path. Verified when the store is opened.")
    force_verify_prop_crc: bool = key("forceVerifyPropCRC", False,
        doc="From 5.x: verify that checksum where records have it, even if none is written.")
    flush_commit_log_least_pages: int = key("flushCommitLogLeastPages", 4,
        unit="pages of 4096 bytes", effect=_ACCEPTED, runtime=True,
        doc="Java skips a flush when fewer pages are dirty; in rmqpy each flush covers everything.")
    commit_commit_log_least_pages: int = key("commitCommitLogLeastPages", 4,
        unit="pages of 4096 bytes", effect=_ACCEPTED, doc="Only with transientStorePoolEnable.")
    flush_least_pages_when_warm_maped_file: int = key("flushLeastPagesWhenWarmMapedFile", 4096,
        unit="pages of 4096 bytes", effect=_ACCEPTED, doc="Only with warmMapedFileEnable.")
    flush_consume_queue_least_pages: int = key("flushConsumeQueueLeastPages", 2,
        unit="pages of 4096 bytes", effect=_ACCEPTED, runtime=True,
        doc="As flushCommitLogLeastPages, for consume queues.")
    flush_commit_log_thorough_interval: int = key("flushCommitLogThoroughInterval", 10000,
        unit="ms", effect=_ACCEPTED, runtime=True,
        doc="Interval at which Java flushes everything; in rmqpy each flush does.")
    commit_commit_log_thorough_interval: int = key("commitCommitLogThoroughInterval", 200,
        unit="ms", effect=_ACCEPTED, doc="Only with transientStorePoolEnable.")
    flush_consume_queue_thorough_interval: int = key("flushConsumeQueueThoroughInterval", 60000,
        unit="ms", runtime=True,
        doc="Time after which every dirty byte of a consume queue is flushed and the checkpoint "
            "is written.")
    max_transfer_bytes_on_message_in_memory: int = key("maxTransferBytesOnMessageInMemory",
        256 << 10, unit="bytes", runtime=True,
        doc="Maximum bytes of one pull of recent messages; a single message is always returned.")
    max_transfer_count_on_message_in_memory: int = key("maxTransferCountOnMessageInMemory", 32,
        runtime=True, doc="Maximum number of messages in one pull of recent messages.")
    max_transfer_bytes_on_message_in_disk: int = key("maxTransferBytesOnMessageInDisk", 64 << 10,
        unit="bytes", runtime=True, doc="Maximum bytes of one pull of old messages.")
    max_transfer_count_on_message_in_disk: int = key("maxTransferCountOnMessageInDisk", 8,
        runtime=True, doc="Maximum number of messages in one pull of old messages.")
    access_message_in_memory_max_ratio: int = key("accessMessageInMemoryMaxRatio", 40, maximum=100,
        unit="percent of the memory",
        doc="Distance from the end of the log beyond which a message counts as old.")
    message_index_enable: bool = key("messageIndexEnable", True,
        doc="Index messages by key, for queries.")
    max_hash_slot_num: int = key("maxHashSlotNum", 5_000_000, minimum=1,
        doc="Number of hash slots in an index file; existing files must have this number.")
    max_index_num: int = key("maxIndexNum", 5_000_000 * 4, minimum=2,
        doc="Number of entries in an index file; existing files must have this number.")
    max_msgs_num_batch: int = key("maxMsgsNumBatch", 64, minimum=1,
        doc="Maximum number of messages in one query by key.")
    message_index_safe: bool = key("messageIndexSafe", False, effect=_ACCEPTED,
        doc="Java then recovers from the position up to which the index was written; rmqpy always "
            "brings the index in line with the log.")
    ha_listen_port: int = key("haListenPort", 10912, maximum=65536,
        doc="Port of classic replication; always listenPort + 1, as in Java 4.9.7.")
    ha_send_heartbeat_interval: int = key("haSendHeartbeatInterval", 5000, minimum=1, unit="ms",
        doc="Interval at which an idle replication link sends a heartbeat.")
    ha_housekeeping_interval: int = key("haHousekeepingInterval", 20000, minimum=1, unit="ms",
        doc="Time after which a replication link that has received nothing is closed.")
    ha_transfer_batch_size: int = key("haTransferBatchSize", 32 << 10, minimum=1,
        maximum=(4 << 20) - 12, unit="bytes",
        doc="Log bytes in one replication frame; more than 4 MiB would hang a Java slave.")
    ha_master_address: str | None = key("haMasterAddress", None, kind=ADDRESS,
        doc="Address from which a slave replicates (the master's port + 1); absent: provided by "
            "the name servers.")
    ha_fetch_from_beginning: bool = key("haFetchFromBeginning", False,
        doc="rmqpy only: a slave with an empty store fetches all files of its master, not only "
            "the last one.")
    ha_serve_entries: bool = key("haServeEntries", False,
        doc="rmqpy only: a member of a DLedger group opens the port of classic replication, and "
            "serves committed entries as a classic log, so that slaves can follow the group.")
    ha_slave_fallbehind_max: int = key("haSlaveFallbehindMax", 256 << 20, unit="bytes",
        runtime=True, doc="SYNC_MASTER: a slave that lags by more does not count as available.")
    in_sync_replicas: int = key("inSyncReplicas", 2, minimum=1, maximum=65, runtime=True,
        doc="From 5.x, SYNC_MASTER: number of replicas, counting the master, that must have a "
            "message before the answer. 2 waits for one slave, as Java 4.9 always does; 1, the "
            "default of Java 5.x, waits for none.")
    min_in_sync_replicas: int = key("minInSyncReplicas", 1, minimum=1, maximum=65, runtime=True,
        doc="From 5.x, SYNC_MASTER: a message that waits is refused (code 1) while fewer replicas "
            "than this, counting the master, are connected and close enough.")
    enable_auto_in_sync_replicas: bool = key("enableAutoInSyncReplicas", False, runtime=True,
        doc="From 5.x, SYNC_MASTER: if fewer than inSyncReplicas are close enough, wait for those, "
            "but for minInSyncReplicas at least.")
    broker_role: BrokerRole = key("brokerRole", BrokerRole.ASYNC_MASTER,
        doc="ASYNC_MASTER answers a send immediately, SYNC_MASTER once inSyncReplicas have the "
            "message.")
    flush_disk_type: FlushDiskType = key("flushDiskType", FlushDiskType.ASYNC_FLUSH,
        doc="SYNC_FLUSH answers a send once the message is on disk.")
    sync_flush_timeout: int = key("syncFlushTimeout", 5000, minimum=1, unit="ms", runtime=True,
        doc="SYNC_FLUSH: time after which the answer is FLUSH_DISK_TIMEOUT.")
    slave_timeout: int = key("slaveTimeout", 3000, minimum=1, unit="ms", runtime=True,
        doc="SYNC_MASTER: time after which the answer is FLUSH_SLAVE_TIMEOUT.")
    message_delay_level: str = key("messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", kind=DELAY_LEVELS,
        doc="Delays of levels 1, 2, …; a change also changes the delay of waiting messages.")
    flush_delay_offset_interval: int = key("flushDelayOffsetInterval", 10000, minimum=1, long=True,
        unit="ms", runtime=True, doc="Time between two writes of delayOffset.json.")
    clean_file_forcibly_enable: bool = key("cleanFileForciblyEnable", True, runtime=True,
        doc="Delete files before they expire when the disk is nearly full.")
    warm_maped_file_enable: bool = key("warmMapedFileEnable", False, effect=_ACCEPTED,
        doc="Touch every page of a new file; rmqpy writes files with pwrite.")
    offset_check_in_slave: bool = key("offsetCheckInSlave", False, runtime=True,
        doc="Let a slave correct offsets outside its queues, as a master does.")
    debug_lock_enable: bool = key("debugLockEnable", False, effect=_ACCEPTED,
        doc="Java thread dumps on slow appends.")
    duplication_enable: bool = key("duplicationEnable", False, effect=Effect.REFUSED,
        doc="Deliver only what an external replicator has confirmed; rmqpy has no such replicator.")
    disk_fall_recorded: bool = key("diskFallRecorded", True, runtime=True,
        doc="Record how far groups read behind the end of the log "
            "(disableConsumeIfConsumerReadSlowly).")
    os_page_cache_busy_time_out_mills: int = key("osPageCacheBusyTimeOutMills", 1000, long=True,
        unit="ms", runtime=True,
        doc="Sends after a write to the log that took longer than this are refused.")
    default_query_max_num: int = key("defaultQueryMaxNum", 32, minimum=1,
        doc="Maximum number of messages in one query by unique id.")
    transient_store_pool_enable: bool = key("transientStorePoolEnable", False, effect=_ACCEPTED,
        doc="Java then collects messages in memory, answers, and writes them to the file within "
            "commitIntervalCommitLog: if it is killed, they are lost. rmqpy writes all messages of "
            "a turn at once and answers after the write, so it needs no pool and loses none.")
    transient_store_pool_size: int = key("transientStorePoolSize", 5, effect=_ACCEPTED,
        doc="Only with transientStorePoolEnable.")
    fast_fail_if_no_buffer_in_store_pool: bool = key("fastFailIfNoBufferInStorePool", False,
        effect=_ACCEPTED, doc="Only with transientStorePoolEnable.")
    enable_dledger_commit_log: bool = key("enableDLegerCommitLog", False,
        doc="Append new messages to a DLedger log; an old commit log next to it stays readable.")
    dledger_group: str | None = key("dLegerGroup", None,
        doc="Name of the DLedger group, by convention brokerName.")
    dledger_peers: str | None = key("dLegerPeers", None,
        doc="All members, including this one, as id-host:port;id-host:port; an id ends at the "
            "first minus sign.")
    dledger_self_id: str | None = key("dLegerSelfId", None,
        doc="Id of this member: one letter and a number.")
    rmqpy_accept_unverified_peers: bool = key("rmqpyAcceptUnverifiedPeers", False,
        doc="rmqpy only: with an old log before the DLedger log, join Java members although no "
            "certificate shows that their old log is identical.")
    rmqpy_accept_unread_data: bool = key("rmqpyAcceptUnreadData", False,
        doc="rmqpy only: start although the store contains messages or tables of 5.x that rmqpy "
            "does not read (timer messages, POP, RocksDB); the log names them.")
    store_type: str = key("storeType", "default", kind=STORE_TYPE,
        doc="From 5.x. MEMORY, rmqpy only: for test groups, the store is in the memory file system "
            "/dev/shm, and nothing survives the end of the broker; refused with DLedger. "
            "defaultRocksDB, the consume queues and tables of 5.x in RocksDB, is refused: rmqpy "
            "does not read them.")
    rmqpy_certificate: str | None = key("rmqpyCertificate", None,
        doc="rmqpy only: the certificate that rmqpy upgrade verify wrote for all members, each "
            "named by its id; it vouches for Java members. Absent: rmqpy/certificate.json in "
            "storePathRootDir.")
    rmqpy_certificate_key: str | None = key("rmqpyCertificateKey", None,
        doc="rmqpy only: file with the secret that must have signed the certificate; absent: no "
            "signature is required.")
    rmqpy_group_secret: str | None = key("rmqpyGroupSecret", None, secret=True,
        doc="rmqpy only: secret that each member of the DLedger group must know, at least 16 bytes."
            " Members without it are refused, Java members among them. Absent: members are known "
            "by their addresses.")
    rmqpy_group_secret_file: str | None = key("rmqpyGroupSecretFile", None,
        doc="rmqpy only: file with that secret, which other users cannot read, instead of "
            "rmqpyGroupSecret.")
    rmqpy_refuse_blocking_leave: bool = key("rmqpyRefuseBlockingLeave", False, runtime=True,
        doc="rmqpy only: in a DLedger log, refuse messages (code 13) whose properties leave no "
            "room for the way back to a classic log; false: accept them, warn once, count them "
            "(messagesBlockingLeave in the runtime information).")
    rmqpy_put_message_hooks: str | None = key("rmqpyPutMessageHooks", None,
        doc="rmqpy only: entry points that see each message before it is stored, and may refuse it "
            "(docs/how-to/check-messages-with-a-hook.md), separated by semicolons.")
    preferred_leader_id: str | None = key("preferredLeaderId", None,
        doc="Ids of the members that should lead when they can, separated by semicolons.")
    is_enable_batch_push: bool = key("isEnableBatchPush", False,
        doc="Push several DLedger entries in one request; in a file, Java 4.9.7 reads it only as "
            "enableBatchPush.")
    enable_schedule_message_stats: bool = key("enableScheduleMessageStats", True, effect=_ACCEPTED,
        doc="Statistics of delayed messages.")
    enable_lmq: bool = key("enableLmq", False, effect=Effect.REFUSED,
        doc="Light queues (%LMQ%) in addition to the real ones; they are not supported.")
    enable_multi_dispatch: bool = key("enableMultiDispatch", False, effect=Effect.REFUSED,
        doc="Dispatch of one message to several queues; not supported.")
    max_lmq_consume_queue_num: int = key("maxLmqConsumeQueueNum", 20000, effect=_ACCEPTED,
        doc="Only with enableLmq.")
    enable_schedule_async_deliver: bool = key("enableScheduleAsyncDeliver", False, effect=_ACCEPTED,
        doc="Let delayed deliveries overlap; in rmqpy one turn delivers all that are due.")
    schedule_async_deliver_max_pending_limit: int = key("scheduleAsyncDeliverMaxPendingLimit", 2000,
        effect=_ACCEPTED, doc="Only with enableScheduleAsyncDeliver.")
    schedule_async_deliver_max_resend_num2_blocked: int = key(
        "scheduleAsyncDeliverMaxResendNum2Blocked", 3, effect=_ACCEPTED,
        doc="Only with enableScheduleAsyncDeliver.")
    # fmt: on

    @property
    def checks_property_crc(self) -> bool:
        """True if the checksum over whole records is verified."""
        return self.enabled_append_prop_crc or self.force_verify_prop_crc

    @cached_property
    def replicas_required(self) -> int:
        """The replicas, counting the master, that a synchronous master waits for."""
        return max(self.in_sync_replicas, self.min_in_sync_replicas)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of all levels in ms. The delay of level n is item n - 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def dledger_members(self) -> tuple[DLedgerPeer, ...]:
        """The members listed in ``dLegerPeers``; empty if the key is absent."""
        return parse_dledger_peers(self.dledger_peers) if self.dledger_peers else ()

    @property
    def dledger_data_path(self) -> str:
        """The directory of DLedger's data files."""
        default = f"{self.store_path_root_dir}/dledger-{self.dledger_self_id}/data"
        return self.store_path_dledger_commit_log or default
