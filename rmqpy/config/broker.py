"""The keys of Java's BrokerConfig, 4.9.7, all of them. How a line is read: config_keys.py."""

from __future__ import annotations

from attrs import define

from rmqpy.config.keys import ADDRESSES, Effect, key, parse_addresses

_ACCEPTED = Effect.ACCEPTED
_THREADS = Effect.THREADS
_REFUSED = Effect.REFUSED

NOT_NAMED = "DEFAULT_BROKER"
"""brokerName where nothing names the broker (Java: the host name, and this where it has none)."""


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class BrokerSettings:
    """Java BrokerConfig: identity, name servers, topics, clients, transactions."""

    rocketmq_home: str | None = key(
        "rocketmqHome",
        default=None,
        doc="Java's installation folder (environment ROCKETMQ_HOME): access files are looked for "
        "in its conf.",
    )
    namesrv_addr: str | None = key(
        "namesrvAddr",
        default=None,
        kind=ADDRESSES,
        doc="Name servers to register with, all of them; environment NAMESRV_ADDR where the key "
        "is absent.",
    )
    broker_ip1: str | None = key(
        "brokerIP1",
        default=None,
        doc="Address that clients are told to connect to; absent: chosen at start from the host's "
        "addresses.",
    )
    broker_ip2: str | None = key(
        "brokerIP2",
        default=None,
        doc="Address that slaves are told to replicate from; absent: as brokerIP1.",
    )
    broker_name: str = key(
        "brokerName",
        default=NOT_NAMED,
        doc="Name of the group of one master and its slaves; Java's default is the host name.",
    )
    broker_cluster_name: str = key(
        "brokerClusterName", default="DefaultCluster", doc="Cluster that the broker belongs to."
    )
    broker_id: int = key(
        "brokerId",
        default=0,
        minimum=-1,
        long=True,
        doc="0 master (forced for master roles), above 0 slave; with DLedger given by the "
        "election.",
    )
    broker_permission: int = key(
        "brokerPermission",
        default=6,
        maximum=15,
        runtime=True,
        doc="Bits 4 read and 2 write: what clients may do with every topic of this broker.",
    )
    default_topic_queue_nums: int = key(
        "defaultTopicQueueNums",
        default=8,
        minimum=1,
        runtime=True,
        doc="Queues of TBW102, the pattern of automatically created topics.",
    )
    auto_create_topic_enable: bool = key(
        "autoCreateTopicEnable",
        default=True,
        runtime=True,
        doc="Create an unknown topic when the first message for it arrives.",
    )
    cluster_topic_enable: bool = key(
        "clusterTopicEnable", default=True, doc="Offer a topic named as the cluster, for probes."
    )
    broker_topic_enable: bool = key(
        "brokerTopicEnable", default=True, doc="Offer a topic named as the broker, for probes."
    )
    auto_create_subscription_group: bool = key(
        "autoCreateSubscriptionGroup",
        default=True,
        runtime=True,
        doc="Create an unknown consumer group when its first request arrives.",
    )
    message_store_plug_in: str = key(
        "messageStorePlugIn",
        default="",
        effect=_REFUSED,
        doc="Java classes around the store; they cannot be loaded here.",
    )
    msg_trace_topic_name: str = key(
        "msgTraceTopicName", default="RMQ_SYS_TRACE_TOPIC", doc="Topic of message traces."
    )
    trace_topic_enable: bool = key(
        "traceTopicEnable", default=False, doc="Offer the topic of message traces."
    )
    send_message_thread_pool_nums: int = key(
        "sendMessageThreadPoolNums",
        default=2,
        effect=_THREADS,
        doc="Threads that store messages (Java: processors, at most 4).",
    )
    put_message_future_thread_pool_nums: int = key(
        "putMessageFutureThreadPoolNums",
        default=2,
        effect=_THREADS,
        doc="Threads that answer stored messages (Java: processors, at most 4).",
    )
    pull_message_thread_pool_nums: int = key(
        "pullMessageThreadPoolNums",
        default=20,
        effect=_THREADS,
        doc="Threads that answer pulls (Java: 16 + 2 x processors).",
    )
    process_reply_message_thread_pool_nums: int = key(
        "processReplyMessageThreadPoolNums",
        default=20,
        effect=_THREADS,
        doc="Threads for request/reply (Java: 16 + 2 x processors).",
    )
    query_message_thread_pool_nums: int = key(
        "queryMessageThreadPoolNums",
        default=10,
        effect=_THREADS,
        doc="Threads for queries by key (Java: 8 + processors).",
    )
    admin_broker_thread_pool_nums: int = key(
        "adminBrokerThreadPoolNums", default=16, effect=_THREADS, doc="Threads for admin requests."
    )
    client_manage_thread_pool_nums: int = key(
        "clientManageThreadPoolNums",
        default=32,
        effect=_THREADS,
        doc="Threads for clients that leave.",
    )
    consumer_manage_thread_pool_nums: int = key(
        "consumerManageThreadPoolNums",
        default=32,
        effect=_THREADS,
        doc="Threads for consumer offsets.",
    )
    heartbeat_thread_pool_nums: int = key(
        "heartbeatThreadPoolNums",
        default=2,
        effect=_THREADS,
        doc="Threads for heartbeats (Java: processors, at most 32).",
    )
    end_transaction_thread_pool_nums: int = key(
        "endTransactionThreadPoolNums",
        default=12,
        effect=_THREADS,
        doc="Threads for ends of transactions (Java: 8 + 2 x processors).",
    )
    flush_consumer_offset_interval: int = key(
        "flushConsumerOffsetInterval",
        default=5000,
        minimum=1,
        unit="ms",
        runtime=True,
        doc="Time between two writes of consumerOffset.json.",
    )
    flush_consumer_offset_history_interval: int = key(
        "flushConsumerOffsetHistoryInterval",
        default=60000,
        unit="ms",
        effect=_ACCEPTED,
        doc="Read by nothing in Java 4.9.7 either.",
    )
    reject_transaction_message: bool = key(
        "rejectTransactionMessage",
        default=False,
        runtime=True,
        doc="Refuse half messages (code 16).",
    )
    fetch_namesrv_addr_by_address_server: bool = key(
        "fetchNamesrvAddrByAddressServer",
        default=False,
        effect=_REFUSED,
        doc="Ask an HTTP server for the name servers; rmqpy takes them from namesrvAddr only.",
    )
    send_thread_pool_queue_capacity: int = key(
        "sendThreadPoolQueueCapacity",
        default=10000,
        effect=_THREADS,
        doc="Waiting sends before [OVERLOAD].",
    )
    put_thread_pool_queue_capacity: int = key(
        "putThreadPoolQueueCapacity",
        default=10000,
        effect=_THREADS,
        doc="Waiting answers of stored messages.",
    )
    pull_thread_pool_queue_capacity: int = key(
        "pullThreadPoolQueueCapacity", default=100000, effect=_THREADS, doc="Waiting pulls."
    )
    reply_thread_pool_queue_capacity: int = key(
        "replyThreadPoolQueueCapacity",
        default=10000,
        effect=_THREADS,
        doc="Waiting replies of request/reply.",
    )
    query_thread_pool_queue_capacity: int = key(
        "queryThreadPoolQueueCapacity",
        default=20000,
        effect=_THREADS,
        doc="Waiting queries by key.",
    )
    client_manager_thread_pool_queue_capacity: int = key(
        "clientManagerThreadPoolQueueCapacity",
        default=1000000,
        effect=_THREADS,
        doc="Waiting requests of leaving clients.",
    )
    consumer_manager_thread_pool_queue_capacity: int = key(
        "consumerManagerThreadPoolQueueCapacity",
        default=1000000,
        effect=_THREADS,
        doc="Waiting consumer offset requests.",
    )
    heartbeat_thread_pool_queue_capacity: int = key(
        "heartbeatThreadPoolQueueCapacity",
        default=50000,
        effect=_THREADS,
        doc="Waiting heartbeats.",
    )
    end_transaction_pool_queue_capacity: int = key(
        "endTransactionPoolQueueCapacity",
        default=100000,
        effect=_THREADS,
        doc="Waiting ends of transactions.",
    )
    filter_server_nums: int = key(
        "filterServerNums",
        default=0,
        effect=_REFUSED,
        doc="Filter server processes to start; rmqpy never starts a process.",
    )
    long_polling_enable: bool = key(
        "longPollingEnable",
        default=True,
        runtime=True,
        doc="Hold a pull that found nothing as long as its request allows.",
    )
    short_polling_time_mills: int = key(
        "shortPollingTimeMills",
        default=1000,
        long=True,
        unit="ms",
        runtime=True,
        doc="How long such a pull is held with longPollingEnable=false.",
    )
    notify_consumer_ids_changed_enable: bool = key(
        "notifyConsumerIdsChangedEnable",
        default=True,
        runtime=True,
        doc="Tell the members of a consumer group when one joins or leaves.",
    )
    high_speed_mode: bool = key(
        "highSpeedMode",
        default=False,
        effect=_ACCEPTED,
        doc="Read by nothing in Java 4.9.7 either.",
    )
    commercial_enable: bool = key(
        "commercialEnable", default=True, effect=_ACCEPTED, doc="Counters of a hosted service."
    )
    commercial_timer_count: int = key(
        "commercialTimerCount", default=1, effect=_ACCEPTED, doc="Counters of a hosted service."
    )
    commercial_trans_count: int = key(
        "commercialTransCount", default=1, effect=_ACCEPTED, doc="Counters of a hosted service."
    )
    commercial_big_count: int = key(
        "commercialBigCount", default=1, effect=_ACCEPTED, doc="Counters of a hosted service."
    )
    commercial_base_count: int = key(
        "commercialBaseCount", default=1, effect=_ACCEPTED, doc="Counters of a hosted service."
    )
    transfer_msg_by_heap: bool = key(
        "transferMsgByHeap",
        default=True,
        effect=_ACCEPTED,
        doc="How Java copies pulled messages to the socket.",
    )
    max_delay_time: int = key(
        "maxDelayTime",
        default=40,
        effect=_ACCEPTED,
        doc="Read by nothing in Java 4.9.7 either (days).",
    )
    region_id: str = key(
        "regionId", default="DefaultRegion", doc="MSG_REGION of every answer to a send."
    )
    register_broker_timeout_mills: int = key(
        "registerBrokerTimeoutMills",
        default=6000,
        minimum=1,
        unit="ms",
        runtime=True,
        doc="Time-out of a registration with one name server.",
    )
    slave_read_enable: bool = key(
        "slaveReadEnable",
        default=False,
        runtime=True,
        doc="Send consumers that lag far behind to a slave.",
    )
    disable_consume_if_consumer_read_slowly: bool = key(
        "disableConsumeIfConsumerReadSlowly",
        default=False,
        runtime=True,
        doc="Take the right to consume from groups that read too far behind the end of the log.",
    )
    consumer_fallbehind_threshold: int = key(
        "consumerFallbehindThreshold",
        default=16 << 30,
        long=True,
        unit="bytes",
        runtime=True,
        doc="How far is too far for disableConsumeIfConsumerReadSlowly.",
    )
    broker_fast_failure_enable: bool = key(
        "brokerFastFailureEnable",
        default=True,
        runtime=True,
        doc="Refuse requests that have waited too long, where that is known "
        "(docs/reference/features.md).",
    )
    wait_time_mills_in_send_queue: int = key(
        "waitTimeMillsInSendQueue",
        default=200,
        long=True,
        unit="ms",
        runtime=True,
        doc="Longest wait of a send with brokerFastFailureEnable.",
    )
    wait_time_mills_in_pull_queue: int = key(
        "waitTimeMillsInPullQueue",
        default=5000,
        long=True,
        unit="ms",
        runtime=True,
        doc="The same of a pull.",
    )
    wait_time_mills_in_heartbeat_queue: int = key(
        "waitTimeMillsInHeartbeatQueue",
        default=31000,
        long=True,
        unit="ms",
        runtime=True,
        doc="The same of a heartbeat.",
    )
    wait_time_mills_in_transaction_queue: int = key(
        "waitTimeMillsInTransactionQueue",
        default=3000,
        long=True,
        unit="ms",
        runtime=True,
        doc="The same of an end of transaction.",
    )
    start_accept_send_request_time_stamp: int = key(
        "startAcceptSendRequestTimeStamp",
        default=0,
        long=True,
        unit="ms since 1970",
        doc="Sends before this time are refused.",
    )
    trace_on: bool = key(
        "traceOn", default=True, runtime=True, doc="TRACE_ON of every answer to a send."
    )
    enable_calc_filter_bit_map: bool = key(
        "enableCalcFilterBitMap",
        default=False,
        effect=_ACCEPTED,
        doc="Precompute SQL filters into consume queue extensions; the filter is evaluated on the "
        "message here.",
    )
    expect_consumer_num_use_filter: int = key(
        "expectConsumerNumUseFilter",
        default=32,
        minimum=1,
        effect=_ACCEPTED,
        doc="Groups a topic that the Bloom filters of the Java broker are sized for; none are kept "
        "here.",
    )
    max_error_rate_of_bloom_filter: int = key(
        "maxErrorRateOfBloomFilter",
        default=20,
        minimum=1,
        maximum=99,
        unit="percent",
        effect=_ACCEPTED,
        doc="Error rate that they are sized for.",
    )
    filter_data_clean_time_span: int = key(
        "filterDataCleanTimeSpan",
        default=24 * 3600 * 1000,
        long=True,
        unit="ms",
        doc="How long the filter of a group that went away is kept.",
    )
    filter_support_retry: bool = key(
        "filterSupportRetry",
        default=False,
        runtime=True,
        doc="Filter retry topics by the expression of the original topic.",
    )
    enable_property_filter: bool = key(
        "enablePropertyFilter",
        default=False,
        runtime=True,
        doc="Allow subscriptions with SQL92 expressions.",
    )
    compressed_register: bool = key(
        "compressedRegister",
        default=False,
        runtime=True,
        doc="Compress the topic table in registrations (loses the topics' order flag, as in Java).",
    )
    force_register: bool = key(
        "forceRegister",
        default=True,
        runtime=True,
        doc="Register in full each time; false: ask the name servers first whether they need it.",
    )
    register_name_server_period: int = key(
        "registerNameServerPeriod",
        default=30000,
        unit="ms",
        doc="Time between two registrations, moved into 10000 … 60000.",
    )
    transaction_time_out: int = key(
        "transactionTimeOut",
        default=6000,
        long=True,
        unit="ms",
        runtime=True,
        doc="Age from which the producer of a half message is asked.",
    )
    transaction_check_max: int = key(
        "transactionCheckMax",
        default=15,
        runtime=True,
        doc="Questions after which a half message is given up.",
    )
    transaction_check_interval: int = key(
        "transactionCheckInterval",
        default=60000,
        minimum=1,
        long=True,
        unit="ms",
        runtime=True,
        doc="Time between two rounds of questions.",
    )
    acl_enable: bool = key(
        "aclEnable",
        default=False,
        doc="Access control 1.0: accounts of plain_acl.yml, signed requests; what no account may "
        "do is refused (docs/reference/security.md).",
    )
    store_reply_message_enable: bool = key(
        "storeReplyMessageEnable",
        default=True,
        runtime=True,
        doc="Store the replies of request/reply too.",
    )
    enable_detail_stat: bool = key(
        "enableDetailStat",
        default=True,
        effect=_ACCEPTED,
        doc="Keep statistics a queue in addition to those a topic and a group.",
    )
    auto_delete_unused_stats: bool = key(
        "autoDeleteUnusedStats",
        default=False,
        effect=_ACCEPTED,
        doc="Forget statistics with their topic or group.",
    )
    isolate_log_enable: bool = key(
        "isolateLogEnable",
        default=False,
        effect=_ACCEPTED,
        doc="Separate log files for brokers in one Java process.",
    )

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of ``namesrvAddr``; empty when there is none."""
        return parse_addresses(self.namesrv_addr) if self.namesrv_addr else ()

    @property
    def register_period_ms(self) -> int:
        """Time between two registrations."""
        return max(10_000, min(self.register_name_server_period, 60_000))
