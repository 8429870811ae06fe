"""All keys of Java's NettyServerConfig, NettyClientConfig and NamesrvConfig, and rmqpy's own.

:mod:`rmqpy.config.keys` explains the declarations. Java has writeBufferHighWaterMark and
writeBufferLowWaterMark in both Netty classes; a line in a file sets both, so each is one attribute.
"""

from __future__ import annotations

from rmqpy.config.keys import Effect, key
from rmqpy.config.security import ADDRESS_PATTERNS
from rmqpy.model.values import define

_ACCEPTED = Effect.ACCEPTED
_THREADS = Effect.THREADS
_REFUSED = Effect.REFUSED

PRIVATE_ADDRESSES = (
    "127.*.*.*;10.*.*.*;192.168.*.*;169.254.*.*;172.16-31.*.*;"
    "::1;fc00-fdff:*:*:*:*:*:*:*;fe80-febf:*:*:*:*:*:*:*"
)
"""Loopback, private and link-local networks."""


@define(frozen=True, kw_only=True, repr=False)
class ServerSettings:
    """Java NettyServerConfig: the addresses and limits of a listening server."""

    # fmt: off
    listen_port: int = key("listenPort", 10911, maximum=65535,
        doc="Main port (name server: 9876). A broker also listens on it - 2 (fast port) and + 1 "
            "(replication).")
    bind_address: str | None = key("bindAddress", None,
        doc="rmqpy only: address to listen on, 0.0.0.0 for all; absent: brokerIP1, else 127.0.0.1.")
    metrics_listen_address: str | None = key("metricsListenAddress", None,
        doc="rmqpy only: host:port of the pages /health, /ready and, of a broker, /metrics for "
            "Prometheus, which are readable by every host that can reach them; absent: none. "
            "Needs the extra metrics (docs/reference/metrics.md).")
    server_worker_threads: int = key("serverWorkerThreads", 8, effect=_THREADS,
        doc="Netty workers.")
    server_callback_executor_threads: int = key("serverCallbackExecutorThreads", 0, effect=_THREADS,
        doc="Netty callbacks.")
    server_selector_threads: int = key("serverSelectorThreads", 3, effect=_THREADS,
        doc="Netty selectors.")
    server_oneway_semaphore_value: int = key("serverOnewaySemaphoreValue", 256, effect=_THREADS,
        doc="Maximum number of one-way requests in flight from the server.")
    server_async_semaphore_value: int = key("serverAsyncSemaphoreValue", 64, effect=_THREADS,
        doc="Maximum number of asynchronous requests in flight from the server.")
    server_channel_max_idle_time_seconds: int = key("serverChannelMaxIdleTimeSeconds", 120,
        minimum=1, unit="s", doc="Time after which a connection without traffic is closed.")
    max_connections: int = key("maxConnections", 20_000, minimum=1,
        doc="rmqpy only: maximum number of connections per port; more are rejected and counted.")
    frame_header_timeout_millis: int = key("frameHeaderTimeoutMillis", 20_000, minimum=1, unit="ms",
        doc="rmqpy only: time after which a connection that has started a frame without "
            "completing its header is closed.")
    frame_timeout_millis: int = key("frameTimeoutMillis", 60_000, minimum=1, unit="ms",
        doc="rmqpy only: time after which a connection that has started a frame without "
            "completing it is closed.")
    server_socket_snd_buf_size: int = key("serverSocketSndBufSize", 0, unit="bytes",
        effect=_ACCEPTED, doc="The system's default size is used.")
    server_socket_rcv_buf_size: int = key("serverSocketRcvBufSize", 0, unit="bytes",
        effect=_ACCEPTED, doc="The system's default size is used.")
    write_buffer_high_water_mark: int = key("writeBufferHighWaterMark", 0, unit="bytes",
        effect=_ACCEPTED, doc="Netty write buffer above which a channel is not writable.")
    write_buffer_low_water_mark: int = key("writeBufferLowWaterMark", 0, unit="bytes",
        effect=_ACCEPTED, doc="Netty write buffer below which it is writable again.")
    server_socket_backlog: int = key("serverSocketBacklog", 1024, minimum=1,
        doc="Number of connections that may wait to be accepted.")
    server_pooled_byte_buf_allocator_enable: bool = key("serverPooledByteBufAllocatorEnable", True,
        effect=_THREADS, doc="Netty memory.")
    use_epoll_native_selector: bool = key("useEpollNativeSelector", False, effect=_THREADS,
        doc="Netty selector.")
    # fmt: on


@define(frozen=True, kw_only=True, repr=False)
class RemotingSettings(ServerSettings):
    """Java NettyServerConfig and NettyClientConfig, because a broker both listens and connects."""

    # fmt: off
    client_worker_threads: int = key("clientWorkerThreads", 4, effect=_THREADS,
        doc="Netty workers.")
    client_callback_executor_threads: int = key("clientCallbackExecutorThreads", 2, effect=_THREADS,
        doc="Netty callbacks (Java: processors).")
    client_oneway_semaphore_value: int = key("clientOnewaySemaphoreValue", 65535, effect=_THREADS,
        doc="Maximum number of one-way requests in flight.")
    client_async_semaphore_value: int = key("clientAsyncSemaphoreValue", 65535, effect=_THREADS,
        doc="Maximum number of asynchronous requests in flight.")
    connect_timeout_millis: int = key("connectTimeoutMillis", 3000, minimum=1, unit="ms",
        doc="Timeout of an outgoing connection.")
    channel_not_active_interval: int = key("channelNotActiveInterval", 60000, long=True, unit="ms",
        effect=_ACCEPTED, doc="Not used by Java 4.9.7 either.")
    client_channel_max_idle_time_seconds: int = key("clientChannelMaxIdleTimeSeconds", 120,
        minimum=1, unit="s",
        doc="Time after which an outgoing connection without traffic is closed.")
    client_socket_snd_buf_size: int = key("clientSocketSndBufSize", 0, unit="bytes",
        effect=_ACCEPTED, doc="Send buffer of outgoing sockets; the system default is used.")
    client_socket_rcv_buf_size: int = key("clientSocketRcvBufSize", 0, unit="bytes",
        effect=_ACCEPTED, doc="Receive buffer of outgoing sockets; the system default is used.")
    client_pooled_byte_buf_allocator_enable: bool = key("clientPooledByteBufAllocatorEnable", False,
        effect=_THREADS, doc="Netty memory.")
    client_close_socket_if_timeout: bool = key("clientCloseSocketIfTimeout", True,
        doc="Close an outgoing connection when an answer on it is late.")
    use_tls: bool = key("useTLS", False,
        doc="Java's field for tls.enable: either of the two enables TLS on outgoing connections.")
    # fmt: on


@define(frozen=True, kw_only=True, repr=False)
class NamesrvSettings:
    """Java NamesrvConfig, and the addresses that may register and administer."""

    # fmt: off
    namesrv_acl_enable: bool = key("namesrvAclEnable", False,
        doc="rmqpy only: access files as for brokers; registrations and administration must be "
            "signed by an administrator or come from the addresses below.")
    registration_addresses: str = key("registrationAddresses", PRIVATE_ADDRESSES,
        kind=ADDRESS_PATTERNS,
        doc="rmqpy only: addresses from which brokers may register without a signature; default: "
            "this host and private networks.")
    administration_addresses: str = key("administrationAddresses", "*", kind=ADDRESS_PATTERNS,
        doc="rmqpy only: addresses from which settings, key-value pairs, permissions and topics "
            "may be changed without a signature.")
    rocketmq_home: str | None = key("rocketmqHome", None,
        doc="Java's installation directory (environment ROCKETMQ_HOME); access files are searched "
            "in its conf directory.")
    kv_config_path: str = key("kvConfigPath", "namesrv/kvConfig.json",
        doc="File of the key-value settings; default: in the home directory.")
    config_store_path: str = key("configStorePath", "namesrv/namesrv.properties",
        doc="File that changed settings are written to; default: the file given at start, or one "
            "in the home directory.")
    product_env_name: str = key("productEnvName", "center", effect=_ACCEPTED,
        doc="Only used with clusterTest.")
    cluster_test: bool = key("clusterTest", False, effect=_REFUSED,
        doc="Query the name servers of another environment for unknown topics.")
    order_message_enable: bool = key("orderMessageEnable", False, runtime=True,
        doc="Add the order configuration of a topic to its route.")
    # fmt: on
