"""Headers for registration, routes, and administration of topics, settings, and access control."""

from __future__ import annotations

from rmqpy.remoting.command_header import CommandHeader, Int64
from rmqpy.remoting.lazy_attrs import lazy_define


@lazy_define(kw_only=True)
class RegisterBrokerRequestHeader(CommandHeader):
    """The registration of a broker.

    Only 5.x brokers send the last two fields; ``heartbeat_timeout_millis`` is then the time after
    which the registration expires.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: int = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


@lazy_define(kw_only=True)
class RegisterBrokerResponseHeader(CommandHeader):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@lazy_define(kw_only=True)
class UnRegisterBrokerRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@lazy_define(kw_only=True)
class QueryDataVersionRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@lazy_define(kw_only=True)
class QueryDataVersionResponseHeader(CommandHeader):
    changed: bool


@lazy_define(kw_only=True)
class GetRouteInfoRequestHeader(CommandHeader):
    topic: str
    accept_standard_json_only: bool | None = None


@lazy_define(kw_only=True)
class PutKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str
    value: str


@lazy_define(kw_only=True)
class GetKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


@lazy_define(kw_only=True)
class GetKVConfigResponseHeader(CommandHeader):
    value: str | None = None


@lazy_define(kw_only=True)
class DeleteKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


@lazy_define(kw_only=True)
class GetKVListByNamespaceRequestHeader(CommandHeader):
    namespace: str


@lazy_define(kw_only=True)
class WipeWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


@lazy_define(kw_only=True)
class WipeWritePermOfBrokerResponseHeader(CommandHeader):
    wipe_topic_count: int


@lazy_define(kw_only=True)
class AddWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


@lazy_define(kw_only=True)
class AddWritePermOfBrokerResponseHeader(CommandHeader):
    add_topic_count: int


@lazy_define(kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(CommandHeader):
    topic: str
    cluster_name: str | None = None


@lazy_define(kw_only=True)
class GetTopicsByClusterRequestHeader(CommandHeader):
    cluster: str


@lazy_define(kw_only=True)
class CreateTopicRequestHeader(CommandHeader):
    """A topic to create or change. ``topic_filter_type`` is SINGLE_TAG or MULTI_TAG; ``order`` has
    no effect in Java.
    """

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool = False


@lazy_define(kw_only=True)
class DeleteTopicRequestHeader(CommandHeader):
    topic: str


@lazy_define(kw_only=True)
class GetTopicStatsInfoRequestHeader(CommandHeader):
    topic: str


@lazy_define(kw_only=True)
class GetAllTopicConfigResponseHeader(CommandHeader):
    """An empty header."""


@lazy_define(kw_only=True)
class GetBrokerConfigResponseHeader(CommandHeader):
    """The version of the settings: a DataVersion as JSON."""

    version: str


@lazy_define(kw_only=True)
class ViewBrokerStatsDataRequestHeader(CommandHeader):
    stats_name: str
    stats_key: str


@lazy_define(kw_only=True)
class CreateAccessConfigRequestHeader(CommandHeader):
    """An account. ``topic_perms`` and ``group_perms`` are ``name=PERM`` separated by commas."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@lazy_define(kw_only=True)
class DeleteAccessConfigRequestHeader(CommandHeader):
    access_key: str


@lazy_define(kw_only=True)
class UpdateGlobalWhiteAddrsConfigRequestHeader(CommandHeader):
    """The global white list. ``global_white_addrs`` is separated by commas."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@lazy_define(kw_only=True)
class GetBrokerAclConfigResponseHeader(CommandHeader):
    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@lazy_define(kw_only=True)
class CompareLogRequestHeader(CommandHeader):
    """A request of rmqpy for digests of ``[begin_offset, end_offset)`` in blocks of ``block_size``
    bytes.
    """

    begin_offset: Int64
    end_offset: Int64
    block_size: int


@lazy_define(kw_only=True)
class FenceRequestHeader(CommandHeader):
    """A request of rmqpy: fence a broker for ``seconds``, open it (0), or only read its state
    (absent).
    """

    seconds: int | None = None


@lazy_define(kw_only=True)
class ChangeRoleRequestHeader(CommandHeader):
    """A request of rmqpy: make a broker of a classic group master (``SYNC_MASTER`` or
    ``ASYNC_MASTER``) or ``SLAVE`` if its log ends at ``end``. A slave gets ``broker_id`` and
    follows ``master_addr``.
    """

    role: str
    end: Int64
    broker_id: int | None = None
    master_addr: str | None = None
    ha_server_addr: str | None = None
