"""All keys of Java's BrokerConfig, 4.9.7. :mod:`rmqpy.config.keys` explains the declarations."""

from __future__ import annotations

from rmqpy.config.keys import ADDRESSES, Effect, key, parse_addresses
from rmqpy.model.values import define

_ACCEPTED = Effect.ACCEPTED
_THREADS = Effect.THREADS
_REFUSED = Effect.REFUSED

NOT_NAMED = "DEFAULT_BROKER"
"""The brokerName if neither it nor a host name is set, as in Java."""


@define(frozen=True, kw_only=True, repr=False)
class BrokerSettings:
    """Java BrokerConfig: identity, name servers, topics, clients, transactions."""

    # fmt: off
    rocketmq_home: str | None = key("rocketmqHome", None,
        doc="Java's installation directory (environment ROCKETMQ_HOME); access files are searched "
            "in its conf directory.")
    namesrv_addr: str | None = key("namesrvAddr", None, kind=ADDRESSES,
        doc="Name servers to register with, all of them; if the key is absent, the environment "
            "variable NAMESRV_ADDR.")
    broker_ip1: str | None = key("brokerIP1", None,
        doc="Address that clients connect to; absent: chosen at start from the addresses of the "
            "host.")
    broker_ip2: str | None = key("brokerIP2", None,
        doc="Address that slaves replicate from; absent: same as brokerIP1.")
    broker_name: str = key("brokerName", NOT_NAMED,
        doc="Name of the group of one master and its slaves; Java's default is the host name.")
    broker_cluster_name: str = key("brokerClusterName", "DefaultCluster",
        doc="Cluster that the broker belongs to.")
    broker_id: int = key("brokerId", 0, minimum=-1, long=True,
        doc="0 for a master (forced for master roles), above 0 for a slave; with DLedger set by "
            "the election.")
    broker_permission: int = key("brokerPermission", 6, maximum=15, runtime=True,
        doc="What clients may do with every topic of this broker; bit 4 is read, bit 2 is write.")
    default_topic_queue_nums: int = key("defaultTopicQueueNums", 8, minimum=1, runtime=True,
        doc="Number of queues of TBW102, the template for automatically created topics.")
    auto_create_topic_enable: bool = key("autoCreateTopicEnable", True, runtime=True,
        doc="Create an unknown topic when the first message for it arrives.")
    cluster_topic_enable: bool = key("clusterTopicEnable", True,
        doc="Provide a topic named after the cluster, for probes.")
    broker_topic_enable: bool = key("brokerTopicEnable", True,
        doc="Provide a topic named after the broker, for probes.")
    auto_create_subscription_group: bool = key("autoCreateSubscriptionGroup", True, runtime=True,
        doc="Create an unknown consumer group when its first request arrives.")
    message_store_plug_in: str = key("messageStorePlugIn", "", effect=_REFUSED,
        doc="Java classes that wrap the store; rmqpy cannot load them. rmqpyPutMessageHooks checks "
            "messages (docs/how-to/check-messages-with-a-hook.md).")
    msg_trace_topic_name: str = key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC",
        doc="Topic of message traces.")
    trace_topic_enable: bool = key("traceTopicEnable", False,
        doc="Provide the topic of message traces.")
    send_message_thread_pool_nums: int = key("sendMessageThreadPoolNums", 2, effect=_THREADS,
        doc="Threads that store messages (Java: processors, at most 4).")
    put_message_future_thread_pool_nums: int = key("putMessageFutureThreadPoolNums", 2,
        effect=_THREADS, doc="Threads that answer stored messages (Java: processors, at most 4).")
    pull_message_thread_pool_nums: int = key("pullMessageThreadPoolNums", 20, effect=_THREADS,
        doc="Threads that answer pulls (Java: 16 + 2 x processors).")
    process_reply_message_thread_pool_nums: int = key("processReplyMessageThreadPoolNums", 20,
        effect=_THREADS, doc="Threads for request/reply (Java: 16 + 2 x processors).")
    query_message_thread_pool_nums: int = key("queryMessageThreadPoolNums", 10, effect=_THREADS,
        doc="Threads for queries by key (Java: 8 + processors).")
    admin_broker_thread_pool_nums: int = key("adminBrokerThreadPoolNums", 16, effect=_THREADS,
        doc="Threads for admin requests.")
    client_manage_thread_pool_nums: int = key("clientManageThreadPoolNums", 32, effect=_THREADS,
        doc="Threads for clients that unregister.")
    consumer_manage_thread_pool_nums: int = key("consumerManageThreadPoolNums", 32, effect=_THREADS,
        doc="Threads for consumer offsets.")
    heartbeat_thread_pool_nums: int = key("heartbeatThreadPoolNums", 2, effect=_THREADS,
        doc="Threads for heartbeats (Java: processors, at most 32).")
    end_transaction_thread_pool_nums: int = key("endTransactionThreadPoolNums", 12, effect=_THREADS,
        doc="Threads for commits and rollbacks of transactions (Java: 8 + 2 x processors).")
    flush_consumer_offset_interval: int = key("flushConsumerOffsetInterval", 5000, minimum=1,
        unit="ms", runtime=True, doc="Time between two writes of consumerOffset.json.")
    flush_consumer_offset_history_interval: int = key("flushConsumerOffsetHistoryInterval", 60000,
        unit="ms", effect=_ACCEPTED, doc="Not used by Java 4.9.7 either.")
    reject_transaction_message: bool = key("rejectTransactionMessage", False, runtime=True,
        doc="Refuse half messages (code 16).")
    fetch_namesrv_addr_by_address_server: bool = key("fetchNamesrvAddrByAddressServer", False,
        effect=_REFUSED,
        doc="Fetch the name servers from an HTTP server; rmqpy takes them from namesrvAddr only.")
    send_thread_pool_queue_capacity: int = key("sendThreadPoolQueueCapacity", 10000,
        effect=_THREADS, doc="Maximum number of waiting sends before [OVERLOAD].")
    put_thread_pool_queue_capacity: int = key("putThreadPoolQueueCapacity", 10000, effect=_THREADS,
        doc="Maximum number of waiting answers for stored messages.")
    pull_thread_pool_queue_capacity: int = key("pullThreadPoolQueueCapacity", 100000,
        effect=_THREADS, doc="Maximum number of waiting pulls.")
    reply_thread_pool_queue_capacity: int = key("replyThreadPoolQueueCapacity", 10000,
        effect=_THREADS, doc="Maximum number of waiting replies of request/reply.")
    query_thread_pool_queue_capacity: int = key("queryThreadPoolQueueCapacity", 20000,
        effect=_THREADS, doc="Maximum number of waiting queries by key.")
    client_manager_thread_pool_queue_capacity: int = key("clientManagerThreadPoolQueueCapacity",
        1000000, effect=_THREADS,
        doc="Maximum number of waiting requests of clients that unregister.")
    consumer_manager_thread_pool_queue_capacity: int = key("consumerManagerThreadPoolQueueCapacity",
        1000000, effect=_THREADS, doc="Maximum number of waiting consumer offset requests.")
    heartbeat_thread_pool_queue_capacity: int = key("heartbeatThreadPoolQueueCapacity", 50000,
        effect=_THREADS, doc="Maximum number of waiting heartbeats.")
    end_transaction_pool_queue_capacity: int = key("endTransactionPoolQueueCapacity", 100000,
        effect=_THREADS, doc="Maximum number of waiting commits and rollbacks of transactions.")
    filter_server_nums: int = key("filterServerNums", 0, effect=_REFUSED,
        doc="Filter server processes to start; rmqpy never starts a process.")
    long_polling_enable: bool = key("longPollingEnable", True, runtime=True,
        doc="Hold a pull that found nothing for as long as its request allows.")
    short_polling_time_mills: int = key("shortPollingTimeMills", 1000, long=True, unit="ms",
        runtime=True, doc="How long such a pull is held with longPollingEnable=false.")
    notify_consumer_ids_changed_enable: bool = key("notifyConsumerIdsChangedEnable", True,
        runtime=True, doc="Notify the members of a consumer group when one joins or leaves.")
    high_speed_mode: bool = key("highSpeedMode", False, effect=_ACCEPTED,
        doc="Not used by Java 4.9.7 either.")
    commercial_enable: bool = key("commercialEnable", True, effect=_ACCEPTED,
        doc="Counters of a hosted service.")
    commercial_timer_count: int = key("commercialTimerCount", 1, effect=_ACCEPTED,
        doc="Counters of a hosted service.")
    commercial_trans_count: int = key("commercialTransCount", 1, effect=_ACCEPTED,
        doc="Counters of a hosted service.")
    commercial_big_count: int = key("commercialBigCount", 1, effect=_ACCEPTED,
        doc="Counters of a hosted service.")
    commercial_base_count: int = key("commercialBaseCount", 1, effect=_ACCEPTED,
        doc="Counters of a hosted service.")
    transfer_msg_by_heap: bool = key("transferMsgByHeap", True, effect=_ACCEPTED,
        doc="How Java copies pulled messages to the socket.")
    max_delay_time: int = key("maxDelayTime", 40, effect=_ACCEPTED,
        doc="Not used by Java 4.9.7 either (days).")
    region_id: str = key("regionId", "DefaultRegion",
        doc="Value of MSG_REGION in every answer to a send.")
    register_broker_timeout_mills: int = key("registerBrokerTimeoutMills", 6000, minimum=1,
        unit="ms", runtime=True, doc="Timeout of a registration with one name server.")
    slave_read_enable: bool = key("slaveReadEnable", False, runtime=True,
        doc="Redirect consumers that lag far behind to a slave.")
    disable_consume_if_consumer_read_slowly: bool = key("disableConsumeIfConsumerReadSlowly", False,
        runtime=True,
        doc="Revoke the permission to consume from groups that read too far behind the end of the "
            "log.")
    consumer_fallbehind_threshold: int = key("consumerFallbehindThreshold", 16 << 30, long=True,
        unit="bytes", runtime=True,
        doc="Distance that counts as too far for disableConsumeIfConsumerReadSlowly.")
    broker_fast_failure_enable: bool = key("brokerFastFailureEnable", True, runtime=True,
        doc="Refuse requests that have waited too long, where the waiting time is known "
            "(docs/reference/features.md).")
    wait_time_mills_in_send_queue: int = key("waitTimeMillsInSendQueue", 200, long=True, unit="ms",
        runtime=True, doc="Maximum waiting time of a send with brokerFastFailureEnable.")
    wait_time_mills_in_pull_queue: int = key("waitTimeMillsInPullQueue", 5000, long=True, unit="ms",
        runtime=True, doc="Maximum waiting time of a pull.")
    wait_time_mills_in_heartbeat_queue: int = key("waitTimeMillsInHeartbeatQueue", 31000, long=True,
        unit="ms", runtime=True, doc="Maximum waiting time of a heartbeat.")
    wait_time_mills_in_transaction_queue: int = key("waitTimeMillsInTransactionQueue", 3000,
        long=True, unit="ms", runtime=True,
        doc="Maximum waiting time of a commit or rollback of a transaction.")
    start_accept_send_request_time_stamp: int = key("startAcceptSendRequestTimeStamp", 0, long=True,
        unit="ms since 1970", doc="Sends before this time are refused.")
    trace_on: bool = key("traceOn", True, runtime=True,
        doc="Value of TRACE_ON in every answer to a send.")
    enable_calc_filter_bit_map: bool = key("enableCalcFilterBitMap", False, effect=_ACCEPTED,
        doc="Precompute SQL filters into consume queue extensions; rmqpy evaluates the filter on "
            "the message.")
    expect_consumer_num_use_filter: int = key("expectConsumerNumUseFilter", 32, minimum=1,
        effect=_ACCEPTED,
        doc="Number of groups per topic that the Bloom filters of the Java broker are sized for; "
            "rmqpy has none.")
    max_error_rate_of_bloom_filter: int = key("maxErrorRateOfBloomFilter", 20, minimum=1,
        maximum=99, unit="percent", effect=_ACCEPTED,
        doc="Error rate that these Bloom filters are sized for.")
    filter_data_clean_time_span: int = key("filterDataCleanTimeSpan", 24 * 3600 * 1000, long=True,
        unit="ms", doc="How long the filter of a group without members is kept.")
    filter_support_retry: bool = key("filterSupportRetry", False, runtime=True,
        doc="Filter retry topics with the expression of the original topic.")
    enable_property_filter: bool = key("enablePropertyFilter", False, runtime=True,
        doc="Allow subscriptions with SQL92 expressions.")
    compressed_register: bool = key("compressedRegister", False, runtime=True,
        doc="Compress the topic table in registrations (loses the topics' order flag, as in Java).")
    force_register: bool = key("forceRegister", True, runtime=True,
        doc="Send a full registration each time; false: first query whether the name servers need "
            "it.")
    register_name_server_period: int = key("registerNameServerPeriod", 30000, unit="ms",
        doc="Time between two registrations, clamped to 10000 … 60000.")
    transaction_time_out: int = key("transactionTimeOut", 6000, long=True, unit="ms", runtime=True,
        doc="Age of a half message from which its producer is checked.")
    transaction_check_max: int = key("transactionCheckMax", 15, runtime=True,
        doc="Number of checks after which a half message is discarded.")
    transaction_check_interval: int = key("transactionCheckInterval", 60000, minimum=1, long=True,
        unit="ms", runtime=True, doc="Time between two rounds of checks.")
    acl_enable: bool = key("aclEnable", False,
        doc="Access control 1.0: accounts in plain_acl.yml, signed requests; whatever no account "
            "permits is refused (docs/reference/security.md).")
    store_reply_message_enable: bool = key("storeReplyMessageEnable", True, runtime=True,
        doc="Also store the replies of request/reply.")
    enable_detail_stat: bool = key("enableDetailStat", True, effect=_ACCEPTED,
        doc="Keep statistics per queue in addition to those per topic and group.")
    auto_delete_unused_stats: bool = key("autoDeleteUnusedStats", False, effect=_ACCEPTED,
        doc="Delete statistics together with their topic or group.")
    enable_controller_mode: bool = key("enableControllerMode", False, effect=_REFUSED,
        doc="From 5.x: a controller elects the master. rmqpy would start as a second one: use the "
            "Java broker, or leave the controller and set brokerRole or enableDLegerCommitLog.")
    enable_slave_acting_master: bool = key("enableSlaveActingMaster", False, effect=_REFUSED,
        doc="From 5.x: without a master, the slave with the lowest id delivers delayed messages, "
            "checks transactions, and serves offsets and locks. In rmqpy the master alone does, "
            "because two brokers would do it twice when the network is cut: remove it on all "
            "brokers of the group; rmqpy admin promote, or a DLedger group, replaces a lost "
            "master.")
    broker_config_paths: str = key("brokerConfigPaths", "", effect=_REFUSED,
        doc="From 5.x: the brokers of a BrokerContainer; start each with its own configuration "
            "file.")
    isolate_log_enable: bool = key("isolateLogEnable", False, effect=_ACCEPTED,
        doc="Separate log files for brokers in one Java process.")
    # fmt: on

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in ``namesrvAddr``; empty if the key is absent."""
        return parse_addresses(self.namesrv_addr) if self.namesrv_addr else ()

    @property
    def register_period_ms(self) -> int:
        """The time between two registrations."""
        return max(10_000, min(self.register_name_server_period, 60_000))
