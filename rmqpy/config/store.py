"""The keys of Java's MessageStoreConfig, 4.9.7, all of them. How a line is read: config_keys.py."""

from __future__ import annotations

from attrs import Factory, define

from rmqpy.config.keys import (
    ADDRESS,
    DELAY_LEVELS,
    HOURS,
    ONE_FOLDER,
    BrokerRole,
    DLedgerPeer,
    Effect,
    FlushDiskType,
    key,
    parse_delay_levels,
    parse_dledger_peers,
)

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


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class StoreSettings:
    """Java MessageStoreConfig: files, flushing, replication, delays, DLedger."""

    store_path_root_dir: str = key(
        "storePathRootDir",
        default="store",
        doc="Folder of the store; default: store in the home folder.",
    )
    store_path_commit_log: str = key(
        "storePathCommitLog",
        default=Factory(lambda self: f"{self.store_path_root_dir}/commitlog", takes_self=True),
        kind=ONE_FOLDER,
        doc="Folder of the classic commit log; default: commitlog in storePathRootDir.",
    )
    store_path_dledger_commit_log: str | None = key(
        "storePathDLedgerCommitLog",
        default=None,
        kind=ONE_FOLDER,
        doc="Folder of DLedger's data files; default: dledger-<dLegerSelfId>/data in "
        "storePathRootDir.",
    )
    read_only_commit_log_store_paths: str | None = key(
        "readOnlyCommitLogStorePaths",
        default=None,
        effect=Effect.REFUSED,
        doc="Commit log folders that are read only; a log in several folders is not supported.",
    )
    mapped_file_size_commit_log: int = key(
        "mappedFileSizeCommitLog",
        default=1 << 30,
        minimum=1024,
        unit="bytes",
        doc="Size of a commit log file; files that are there must have it.",
    )
    mapped_file_size_consume_queue: int = key(
        "mappedFileSizeConsumeQueue",
        default=300_000 * CONSUME_QUEUE_UNIT_BYTES,
        minimum=1,
        unit="bytes",
        converter=_whole_units,
        doc="Size of a consume queue file, rounded up to a multiple of 20; files that are there "
        "must have it.",
    )
    enable_consume_queue_ext: bool = key(
        "enableConsumeQueueExt",
        default=False,
        effect=Effect.REFUSED,
        doc="Consume queue units that point to extension files, which are not supported.",
    )
    mapped_file_size_consume_queue_ext: int = key(
        "mappedFileSizeConsumeQueueExt",
        default=48 << 20,
        unit="bytes",
        effect=_ACCEPTED,
        doc="Size of an extension file.",
    )
    bit_map_length_consume_queue_ext: int = key(
        "bitMapLengthConsumeQueueExt",
        default=64,
        unit="bits",
        effect=_ACCEPTED,
        doc="Bits of a filter in an extension file (Java corrects it to 112 at start).",
    )
    flush_interval_commit_log: int = key(
        "flushIntervalCommitLog",
        default=500,
        minimum=1,
        unit="ms",
        runtime=True,
        doc="ASYNC_FLUSH: time between two flushes of the commit log.",
    )
    commit_interval_commit_log: int = key(
        "commitIntervalCommitLog",
        default=200,
        unit="ms",
        effect=_ACCEPTED,
        doc="Only with transientStorePoolEnable.",
    )
    use_reentrant_lock_when_put_message: bool = key(
        "useReentrantLockWhenPutMessage",
        default=True,
        effect=_ACCEPTED,
        doc="Kind of Java's append lock; one thread appends here.",
    )
    flush_commit_log_timed: bool = key(
        "flushCommitLogTimed",
        default=True,
        effect=_ACCEPTED,
        doc="Whether Java's flush thread sleeps or can be woken.",
    )
    flush_interval_consume_queue: int = key(
        "flushIntervalConsumeQueue",
        default=1000,
        minimum=1,
        unit="ms",
        runtime=True,
        effect=_ACCEPTED,
        doc="Java flushes consume queues with enough dirty pages so often; here all are flushed "
        "each flushConsumeQueueThoroughInterval.",
    )
    clean_resource_interval: int = key(
        "cleanResourceInterval",
        default=10000,
        minimum=1,
        unit="ms",
        doc="Time between two looks for files to delete.",
    )
    delete_commit_log_files_interval: int = key(
        "deleteCommitLogFilesInterval",
        default=100,
        unit="ms",
        doc="Pause between two deleted commit log files.",
    )
    delete_consume_queue_files_interval: int = key(
        "deleteConsumeQueueFilesInterval",
        default=100,
        unit="ms",
        doc="Pause between two queues whose files are deleted.",
    )
    destroy_maped_file_interval_forcibly: int = key(
        "destroyMapedFileIntervalForcibly",
        default=120000,
        unit="ms",
        effect=_ACCEPTED,
        doc="When Java unmaps a file that is still being read; a deleted file stays readable here.",
    )
    redelete_hanged_file_interval: int = key(
        "redeleteHangedFileInterval",
        default=120000,
        unit="ms",
        doc="A file that could not be deleted is tried again after this time; until then no other "
        "goes.",
    )
    delete_when: tuple[int, ...] = key(
        "deleteWhen",
        default=(4,),
        kind=HOURS,
        runtime=True,
        doc="Hours of the day in which expired files are deleted.",
    )
    disk_max_used_space_ratio: int = key(
        "diskMaxUsedSpaceRatio",
        default=75,
        unit="percent",
        clamp=_between_10_and_95,
        runtime=True,
        doc="Disk use above which expired files are deleted at any hour; moved into 10 … 95.",
    )
    file_reserved_time: int = key(
        "fileReservedTime",
        default=72,
        unit="h",
        runtime=True,
        doc="Age from which a commit log file is expired, and a half message given up.",
    )
    disk_space_warning_level_ratio: int = key(
        "diskSpaceWarningLevelRatio",
        default=90,
        unit="percent",
        clamp=_between_35_and_90,
        runtime=True,
        doc="Of 5.x (a system property in 4.9): disk use above which sends are refused, and log "
        "files deleted before their time; moved into 35 … 90.",
    )
    disk_space_clean_forcibly_ratio: int = key(
        "diskSpaceCleanForciblyRatio",
        default=85,
        unit="percent",
        clamp=_between_30_and_85,
        runtime=True,
        doc="Of 5.x (a system property in 4.9): disk use above which log files are deleted before "
        "their time, if cleanFileForciblyEnable; moved into 30 … 85.",
    )
    put_msg_index_hight_water: int = key(
        "putMsgIndexHightWater",
        default=600000,
        effect=_ACCEPTED,
        doc="Read by nothing in Java 4.9.7 either.",
    )
    max_message_size: int = key(
        "maxMessageSize",
        default=4 << 20,
        minimum=1,
        unit="bytes",
        runtime=True,
        doc="Longest body, and longest record, that is stored.",
    )
    check_crc_on_recover: bool = key(
        "checkCRCOnRecover", default=True, doc="Check the bodies' CRC when the store is opened."
    )
    enabled_append_prop_crc: bool = key(
        "enabledAppendPropCRC",
        default=False,
        doc="Of 5.x: a checksum over the whole record is written as its last property, in a "
        "classic log; sends then take the slower path. Verified when the store is opened.",
    )
    force_verify_prop_crc: bool = key(
        "forceVerifyPropCRC",
        default=False,
        doc="Of 5.x: verify that checksum where records have it, though none is written.",
    )
    flush_commit_log_least_pages: int = key(
        "flushCommitLogLeastPages",
        default=4,
        unit="pages of 4096 bytes",
        runtime=True,
        effect=_ACCEPTED,
        doc="Java skips a flush while less is dirty; here each flush takes everything.",
    )
    commit_commit_log_least_pages: int = key(
        "commitCommitLogLeastPages",
        default=4,
        unit="pages of 4096 bytes",
        effect=_ACCEPTED,
        doc="Only with transientStorePoolEnable.",
    )
    flush_least_pages_when_warm_maped_file: int = key(
        "flushLeastPagesWhenWarmMapedFile",
        default=4096,
        unit="pages of 4096 bytes",
        effect=_ACCEPTED,
        doc="Only with warmMapedFileEnable.",
    )
    flush_consume_queue_least_pages: int = key(
        "flushConsumeQueueLeastPages",
        default=2,
        unit="pages of 4096 bytes",
        runtime=True,
        effect=_ACCEPTED,
        doc="As flushCommitLogLeastPages, of consume queues.",
    )
    flush_commit_log_thorough_interval: int = key(
        "flushCommitLogThoroughInterval",
        default=10000,
        unit="ms",
        runtime=True,
        effect=_ACCEPTED,
        doc="Java flushes everything so often; here each flush does.",
    )
    commit_commit_log_thorough_interval: int = key(
        "commitCommitLogThoroughInterval",
        default=200,
        unit="ms",
        effect=_ACCEPTED,
        doc="Only with transientStorePoolEnable.",
    )
    flush_consume_queue_thorough_interval: int = key(
        "flushConsumeQueueThoroughInterval",
        default=60000,
        unit="ms",
        runtime=True,
        doc="Time after which any dirty byte of a consume queue is flushed and the checkpoint "
        "written.",
    )
    max_transfer_bytes_on_message_in_memory: int = key(
        "maxTransferBytesOnMessageInMemory",
        default=256 << 10,
        unit="bytes",
        runtime=True,
        doc="Bytes of one pull of recent messages; one message always passes.",
    )
    max_transfer_count_on_message_in_memory: int = key(
        "maxTransferCountOnMessageInMemory",
        default=32,
        runtime=True,
        doc="Messages of one pull of recent messages.",
    )
    max_transfer_bytes_on_message_in_disk: int = key(
        "maxTransferBytesOnMessageInDisk",
        default=64 << 10,
        unit="bytes",
        runtime=True,
        doc="Bytes of one pull of old messages.",
    )
    max_transfer_count_on_message_in_disk: int = key(
        "maxTransferCountOnMessageInDisk",
        default=8,
        runtime=True,
        doc="Messages of one pull of old messages.",
    )
    access_message_in_memory_max_ratio: int = key(
        "accessMessageInMemoryMaxRatio",
        default=40,
        maximum=100,
        unit="percent of the memory",
        doc="A message so far from the end of the log counts as old.",
    )
    message_index_enable: bool = key(
        "messageIndexEnable", default=True, doc="Index messages by key, for queries."
    )
    max_hash_slot_num: int = key(
        "maxHashSlotNum",
        default=5_000_000,
        minimum=1,
        doc="Hash slots of an index file; files that are there must have it.",
    )
    max_index_num: int = key(
        "maxIndexNum",
        default=5_000_000 * 4,
        minimum=2,
        doc="Entries of an index file; files that are there must have it.",
    )
    max_msgs_num_batch: int = key(
        "maxMsgsNumBatch", default=64, minimum=1, doc="Messages of one query by key."
    )
    message_index_safe: bool = key(
        "messageIndexSafe",
        default=False,
        effect=_ACCEPTED,
        doc="Java then recovers from where the index was written; here the index is always "
        "brought in line with the log.",
    )
    ha_listen_port: int = key(
        "haListenPort",
        default=10912,
        maximum=65536,
        doc="Port of the classic replication; always listenPort + 1, as in Java 4.9.7.",
    )
    ha_send_heartbeat_interval: int = key(
        "haSendHeartbeatInterval",
        default=5000,
        minimum=1,
        unit="ms",
        doc="An idle replication link carries a heartbeat as often.",
    )
    ha_housekeeping_interval: int = key(
        "haHousekeepingInterval",
        default=20000,
        minimum=1,
        unit="ms",
        doc="A replication link without bytes from the other end is closed after this time.",
    )
    ha_transfer_batch_size: int = key(
        "haTransferBatchSize",
        default=32 << 10,
        minimum=1,
        maximum=(4 << 20) - 12,
        unit="bytes",
        doc="Log bytes of one replication frame; more than 4 MiB would hang a Java slave.",
    )
    ha_master_address: str | None = key(
        "haMasterAddress",
        default=None,
        kind=ADDRESS,
        doc="Where a slave replicates from (the master's port + 1); absent: told by name servers.",
    )
    ha_fetch_from_beginning: bool = key(
        "haFetchFromBeginning",
        default=False,
        doc="Own key of rmqpy: a slave whose store is empty gets all files of its master, not only "
        "the last one.",
    )
    ha_slave_fallbehind_max: int = key(
        "haSlaveFallbehindMax",
        default=256 << 20,
        unit="bytes",
        runtime=True,
        doc="SYNC_MASTER: a slave that lags more does not count as available.",
    )
    broker_role: BrokerRole = key(  # noqa: RUF009 (key is attrs' field)
        "brokerRole",
        default=BrokerRole.ASYNC_MASTER,
        doc="ASYNC_MASTER answers a send at once, SYNC_MASTER when a slave has it.",
    )
    flush_disk_type: FlushDiskType = key(  # noqa: RUF009 (key is attrs' field)
        "flushDiskType",
        default=FlushDiskType.ASYNC_FLUSH,
        doc="SYNC_FLUSH answers a send when it is on the disk.",
    )
    sync_flush_timeout: int = key(
        "syncFlushTimeout",
        default=5000,
        minimum=1,
        unit="ms",
        runtime=True,
        doc="SYNC_FLUSH: after this time the answer is FLUSH_DISK_TIMEOUT.",
    )
    slave_timeout: int = key(
        "slaveTimeout",
        default=3000,
        minimum=1,
        unit="ms",
        runtime=True,
        doc="SYNC_MASTER: after this time the answer is FLUSH_SLAVE_TIMEOUT.",
    )
    message_delay_level: str = key(
        "messageDelayLevel",
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        kind=DELAY_LEVELS,
        doc="Delay of level 1, 2, …; a change gives messages that wait another delay.",
    )
    flush_delay_offset_interval: int = key(
        "flushDelayOffsetInterval",
        default=10000,
        minimum=1,
        long=True,
        unit="ms",
        runtime=True,
        doc="Time between two writes of delayOffset.json.",
    )
    clean_file_forcibly_enable: bool = key(
        "cleanFileForciblyEnable",
        default=True,
        runtime=True,
        doc="Delete files before their time when the disk is nearly full.",
    )
    warm_maped_file_enable: bool = key(
        "warmMapedFileEnable",
        default=False,
        effect=_ACCEPTED,
        doc="Touch every page of a new file; files are written with pwrite here.",
    )
    offset_check_in_slave: bool = key(
        "offsetCheckInSlave",
        default=False,
        runtime=True,
        doc="A slave corrects offsets outside its queues as a master does.",
    )
    debug_lock_enable: bool = key(
        "debugLockEnable", default=False, effect=_ACCEPTED, doc="Java thread dumps on slow appends."
    )
    duplication_enable: bool = key(
        "duplicationEnable",
        default=False,
        effect=Effect.REFUSED,
        doc="Deliver only what an outside replicator confirmed; there is no such replicator here.",
    )
    disk_fall_recorded: bool = key(
        "diskFallRecorded",
        default=True,
        runtime=True,
        doc="Remember how far groups read behind the end (disableConsumeIfConsumerReadSlowly).",
    )
    os_page_cache_busy_time_out_mills: int = key(
        "osPageCacheBusyTimeOutMills",
        default=1000,
        long=True,
        unit="ms",
        runtime=True,
        doc="Who sends behind a write of the log that took longer is refused.",
    )
    default_query_max_num: int = key(
        "defaultQueryMaxNum",
        default=32,
        minimum=1,
        doc="Messages of one query by unique id.",
    )
    transient_store_pool_enable: bool = key(
        "transientStorePoolEnable",
        default=False,
        effect=_ACCEPTED,
        doc="Collect messages in memory before the file; every loop turn ends in one write here.",
    )
    transient_store_pool_size: int = key(
        "transientStorePoolSize",
        default=5,
        effect=_ACCEPTED,
        doc="Only with transientStorePoolEnable.",
    )
    fast_fail_if_no_buffer_in_store_pool: bool = key(
        "fastFailIfNoBufferInStorePool",
        default=False,
        effect=_ACCEPTED,
        doc="Only with transientStorePoolEnable.",
    )
    enable_dledger_commit_log: bool = key(
        "enableDLegerCommitLog",
        default=False,
        doc="New messages go to a DLedger log; an old commit log beside it stays readable.",
    )
    dledger_group: str | None = key(
        "dLegerGroup",
        default=None,
        doc="Name of the DLedger group, by convention brokerName.",
    )
    dledger_peers: str | None = key(
        "dLegerPeers",
        default=None,
        doc="All members, this one too, as id-host:port;id-host:port; an id ends at the first "
        "minus sign.",
    )
    dledger_self_id: str | None = key(
        "dLegerSelfId",
        default=None,
        doc="This member's id: one letter and a number.",
    )
    rmqpy_accept_unverified_peers: bool = key(
        "rmqpyAcceptUnverifiedPeers",
        default=False,
        doc="Own key of rmqpy: with an old log in front of the DLedger log, join Java members "
        "although no certificate says that their old log is the same.",
    )
    rmqpy_certificate: str | None = key(
        "rmqpyCertificate",
        default=None,
        doc="Own key of rmqpy: what rmqpy upgrade verify wrote of all members, each named by its "
        "id; it vouches for Java members. Absent: rmqpy/certificate.json in storePathRootDir.",
    )
    rmqpy_certificate_key: str | None = key(
        "rmqpyCertificateKey",
        default=None,
        doc="Own key of rmqpy: file with the secret that must have signed the certificate; absent: "
        "a signature is not asked for.",
    )
    preferred_leader_id: str | None = key(
        "preferredLeaderId",
        default=None,
        doc="Members that should lead when they can, separated by semicolons.",
    )
    is_enable_batch_push: bool = key(
        "isEnableBatchPush",
        default=False,
        doc="Push several DLedger entries in one request; in a file Java 4.9.7 reads it as "
        "enableBatchPush only.",
    )
    enable_schedule_message_stats: bool = key(
        "enableScheduleMessageStats",
        default=True,
        effect=_ACCEPTED,
        doc="Statistics of delayed messages.",
    )
    enable_lmq: bool = key(
        "enableLmq",
        default=False,
        effect=Effect.REFUSED,
        doc="Light queues (%LMQ%) beside the real ones; they are not supported.",
    )
    enable_multi_dispatch: bool = key(
        "enableMultiDispatch",
        default=False,
        effect=Effect.REFUSED,
        doc="One message in several queues; not supported.",
    )
    max_lmq_consume_queue_num: int = key(
        "maxLmqConsumeQueueNum", default=20000, effect=_ACCEPTED, doc="Only with enableLmq."
    )
    enable_schedule_async_deliver: bool = key(
        "enableScheduleAsyncDeliver",
        default=False,
        effect=_ACCEPTED,
        doc="Let delayed deliveries overlap; one turn delivers all that are due here.",
    )
    schedule_async_deliver_max_pending_limit: int = key(
        "scheduleAsyncDeliverMaxPendingLimit",
        default=2000,
        effect=_ACCEPTED,
        doc="Only with enableScheduleAsyncDeliver.",
    )
    schedule_async_deliver_max_resend_num2_blocked: int = key(
        "scheduleAsyncDeliverMaxResendNum2Blocked",
        default=3,
        effect=_ACCEPTED,
        doc="Only with enableScheduleAsyncDeliver.",
    )

    @property
    def checks_property_crc(self) -> bool:
        """Whether the checksum over whole records is verified."""
        return self.enabled_append_prop_crc or self.force_verify_prop_crc

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay of level n stands at n - 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def dledger_members(self) -> tuple[DLedgerPeer, ...]:
        """The peers of ``dLegerPeers``; empty when there are none."""
        return parse_dledger_peers(self.dledger_peers) if self.dledger_peers else ()

    @property
    def dledger_data_path(self) -> str:
        """Folder of DLedger's data files."""
        default = f"{self.store_path_root_dir}/dledger-{self.dledger_self_id}/data"
        return self.store_path_dledger_commit_log or default
