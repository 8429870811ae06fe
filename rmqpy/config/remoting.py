"""The keys of Java's NettyServerConfig, NettyClientConfig and NamesrvConfig, and our own ones.

How a line is read: config_keys.py. Java has writeBufferHighWaterMark and writeBufferLowWaterMark in
both Netty classes; a file sets both, so there is one attribute each.
"""

from __future__ import annotations

from attrs import define

from rmqpy.config.keys import Effect, key
from rmqpy.config.security import ADDRESS_PATTERNS

_ACCEPTED = Effect.ACCEPTED
_THREADS = Effect.THREADS
_REFUSED = Effect.REFUSED

PRIVATE_ADDRESSES = (
    "127.*.*.*;10.*.*.*;192.168.*.*;169.254.*.*;172.16-31.*.*;"
    "::1;fc00-fdff:*:*:*:*:*:*:*;fe80-febf:*:*:*:*:*:*:*"
)
"""Loopback, private and link-local networks."""


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class ServerSettings:
    """Java NettyServerConfig: where and how a server listens."""

    listen_port: int = key(
        "listenPort",
        default=10911,
        maximum=65535,
        doc="Main port (name server: 9876). A broker also listens on it - 2 (fast port) and + 1 "
        "(replication).",
    )
    bind_address: str | None = key(
        "bindAddress",
        default=None,
        doc="Own key of rmqpy: address to listen on, 0.0.0.0 for all; absent: brokerIP1, else "
        "127.0.0.1.",
    )
    metrics_listen_address: str | None = key(
        "metricsListenAddress",
        default=None,
        doc="Own key of rmqpy: host:port of the page /metrics for Prometheus, which everybody who "
        "reaches it may read; absent: none. Needs the extra metrics (docs/reference/metrics.md).",
    )
    server_worker_threads: int = key(
        "serverWorkerThreads", default=8, effect=_THREADS, doc="Netty workers."
    )
    server_callback_executor_threads: int = key(
        "serverCallbackExecutorThreads", default=0, effect=_THREADS, doc="Netty callbacks."
    )
    server_selector_threads: int = key(
        "serverSelectorThreads", default=3, effect=_THREADS, doc="Netty selectors."
    )
    server_oneway_semaphore_value: int = key(
        "serverOnewaySemaphoreValue",
        default=256,
        effect=_THREADS,
        doc="One-way requests that the server has on their way.",
    )
    server_async_semaphore_value: int = key(
        "serverAsyncSemaphoreValue",
        default=64,
        effect=_THREADS,
        doc="Asynchronous requests that the server has on their way.",
    )
    server_channel_max_idle_time_seconds: int = key(
        "serverChannelMaxIdleTimeSeconds",
        default=120,
        minimum=1,
        unit="s",
        doc="A connection without traffic is closed after this time.",
    )
    max_connections: int = key(
        "maxConnections",
        default=20_000,
        minimum=1,
        doc="Own key: connections of one port; more are turned away, and counted.",
    )
    frame_header_timeout_millis: int = key(
        "frameHeaderTimeoutMillis",
        default=20_000,
        minimum=1,
        unit="ms",
        doc="Own key: who has begun a frame and not sent its header in this time is cut off.",
    )
    frame_timeout_millis: int = key(
        "frameTimeoutMillis",
        default=60_000,
        minimum=1,
        unit="ms",
        doc="Own key: who has begun a frame and not ended it in this time is cut off.",
    )
    server_socket_snd_buf_size: int = key(
        "serverSocketSndBufSize",
        default=0,
        unit="bytes",
        effect=_ACCEPTED,
        doc="The system's size is used.",
    )
    server_socket_rcv_buf_size: int = key(
        "serverSocketRcvBufSize",
        default=0,
        unit="bytes",
        effect=_ACCEPTED,
        doc="The system's size is used.",
    )
    write_buffer_high_water_mark: int = key(
        "writeBufferHighWaterMark",
        default=0,
        unit="bytes",
        effect=_ACCEPTED,
        doc="Netty write buffer above which a channel is not writable.",
    )
    write_buffer_low_water_mark: int = key(
        "writeBufferLowWaterMark",
        default=0,
        unit="bytes",
        effect=_ACCEPTED,
        doc="Netty write buffer below which it is writable again.",
    )
    server_socket_backlog: int = key(
        "serverSocketBacklog",
        default=1024,
        minimum=1,
        doc="Connections that may wait to be accepted.",
    )
    server_pooled_byte_buf_allocator_enable: bool = key(
        "serverPooledByteBufAllocatorEnable", default=True, effect=_THREADS, doc="Netty memory."
    )
    use_epoll_native_selector: bool = key(
        "useEpollNativeSelector", default=False, effect=_THREADS, doc="Netty selector."
    )


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class RemotingSettings(ServerSettings):
    """Java NettyServerConfig and NettyClientConfig: a broker listens and connects."""

    client_worker_threads: int = key(
        "clientWorkerThreads", default=4, effect=_THREADS, doc="Netty workers."
    )
    client_callback_executor_threads: int = key(
        "clientCallbackExecutorThreads",
        default=2,
        effect=_THREADS,
        doc="Netty callbacks (Java: processors).",
    )
    client_oneway_semaphore_value: int = key(
        "clientOnewaySemaphoreValue",
        default=65535,
        effect=_THREADS,
        doc="One-way requests on their way.",
    )
    client_async_semaphore_value: int = key(
        "clientAsyncSemaphoreValue",
        default=65535,
        effect=_THREADS,
        doc="Asynchronous requests on their way.",
    )
    connect_timeout_millis: int = key(
        "connectTimeoutMillis",
        default=3000,
        minimum=1,
        unit="ms",
        doc="Time-out of an outgoing connection.",
    )
    channel_not_active_interval: int = key(
        "channelNotActiveInterval",
        default=60000,
        long=True,
        unit="ms",
        effect=_ACCEPTED,
        doc="Read by nothing in Java 4.9.7 either.",
    )
    client_channel_max_idle_time_seconds: int = key(
        "clientChannelMaxIdleTimeSeconds",
        default=120,
        minimum=1,
        unit="s",
        doc="An outgoing connection without traffic is closed after this time.",
    )
    client_socket_snd_buf_size: int = key(
        "clientSocketSndBufSize",
        default=0,
        unit="bytes",
        effect=_ACCEPTED,
        doc="Send buffer of outgoing sockets; the system chooses.",
    )
    client_socket_rcv_buf_size: int = key(
        "clientSocketRcvBufSize",
        default=0,
        unit="bytes",
        effect=_ACCEPTED,
        doc="Receive buffer of outgoing sockets; the system chooses.",
    )
    client_pooled_byte_buf_allocator_enable: bool = key(
        "clientPooledByteBufAllocatorEnable", default=False, effect=_THREADS, doc="Netty memory."
    )
    client_close_socket_if_timeout: bool = key(
        "clientCloseSocketIfTimeout",
        default=True,
        doc="Close an outgoing connection on which an answer was late.",
    )
    use_tls: bool = key(
        "useTLS",
        default=False,
        doc="Java's field for tls.enable: either of the two puts TLS on outgoing connections.",
    )


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class NamesrvSettings:
    """Java NamesrvConfig, and who may register and administrate."""

    namesrv_acl_enable: bool = key(
        "namesrvAclEnable",
        default=False,
        doc="Own key: access files as for brokers; registrations and administration have to be "
        "signed by an administrator, or come from the addresses below.",
    )
    registration_addresses: str = key(
        "registrationAddresses",
        default=PRIVATE_ADDRESSES,
        kind=ADDRESS_PATTERNS,
        doc="Own key: from where brokers may register without a signature; default: this host and "
        "private networks.",
    )
    administration_addresses: str = key(
        "administrationAddresses",
        default="*",
        kind=ADDRESS_PATTERNS,
        doc="Own key: from where settings, key-value pairs, permissions and topics may be changed "
        "without a signature.",
    )

    rocketmq_home: str | None = key(
        "rocketmqHome",
        default=None,
        doc="Java's installation folder (environment ROCKETMQ_HOME): access files are looked for "
        "in its conf.",
    )
    kv_config_path: str = key(
        "kvConfigPath",
        default="namesrv/kvConfig.json",
        doc="File of the key/value settings; default: below the home folder.",
    )
    config_store_path: str = key(
        "configStorePath",
        default="namesrv/namesrv.properties",
        doc="File that changed settings are written to; default: the file given at start, or "
        "below the home folder.",
    )
    product_env_name: str = key(
        "productEnvName",
        default="center",
        effect=_ACCEPTED,
        doc="Only used with clusterTest.",
    )
    cluster_test: bool = key(
        "clusterTest",
        default=False,
        effect=_REFUSED,
        doc="Ask the name servers of another environment for unknown topics.",
    )
    order_message_enable: bool = key(
        "orderMessageEnable",
        default=False,
        runtime=True,
        doc="Add the order configuration of a topic to its route.",
    )
