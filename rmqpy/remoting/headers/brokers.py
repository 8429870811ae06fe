"""Headers of brokers' registration, routes, and administration of topics, settings and access."""

from __future__ import annotations

from attrs import define

from rmqpy.remoting.command_header import CommandHeader, Int64


@define(slots=True, kw_only=True, eq=False, repr=False)
class RegisterBrokerRequestHeader(CommandHeader):
    """The last two come from 5.x brokers only; ``heartbeat_timeout_millis`` is the expiry then."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: int = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class RegisterBrokerResponseHeader(CommandHeader):
    ha_server_addr: str | None = None
    master_addr: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class UnRegisterBrokerRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@define(slots=True, kw_only=True, eq=False, repr=False)
class QueryDataVersionRequestHeader(CommandHeader):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@define(slots=True, kw_only=True, eq=False, repr=False)
class QueryDataVersionResponseHeader(CommandHeader):
    changed: bool


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetRouteInfoRequestHeader(CommandHeader):
    topic: str
    accept_standard_json_only: bool | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class PutKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str
    value: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetKVConfigResponseHeader(CommandHeader):
    value: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class DeleteKVConfigRequestHeader(CommandHeader):
    namespace: str
    key: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetKVListByNamespaceRequestHeader(CommandHeader):
    namespace: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class WipeWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class WipeWritePermOfBrokerResponseHeader(CommandHeader):
    wipe_topic_count: int


@define(slots=True, kw_only=True, eq=False, repr=False)
class AddWritePermOfBrokerRequestHeader(CommandHeader):
    broker_name: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class AddWritePermOfBrokerResponseHeader(CommandHeader):
    add_topic_count: int


@define(slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopicFromNamesrvRequestHeader(CommandHeader):
    topic: str
    cluster_name: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetTopicsByClusterRequestHeader(CommandHeader):
    cluster: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class CreateTopicRequestHeader(CommandHeader):
    """``order`` has no effect in Java; ``topic_filter_type`` is SINGLE_TAG or MULTI_TAG."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool = False


@define(slots=True, kw_only=True, eq=False, repr=False)
class DeleteTopicRequestHeader(CommandHeader):
    topic: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetTopicStatsInfoRequestHeader(CommandHeader):
    topic: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetAllTopicConfigResponseHeader(CommandHeader):
    """Empty."""


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetBrokerConfigResponseHeader(CommandHeader):
    """``version`` is a DataVersion as JSON."""

    version: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class ViewBrokerStatsDataRequestHeader(CommandHeader):
    stats_name: str
    stats_key: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class CreateAccessConfigRequestHeader(CommandHeader):
    """``topic_perms`` and ``group_perms`` are comma lists of ``name=PERM``."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class DeleteAccessConfigRequestHeader(CommandHeader):
    access_key: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class UpdateGlobalWhiteAddrsConfigRequestHeader(CommandHeader):
    """``global_white_addrs`` is a comma list."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@define(slots=True, kw_only=True, eq=False, repr=False)
class GetBrokerAclConfigResponseHeader(CommandHeader):
    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@define(slots=True, kw_only=True, eq=False, repr=False)
class CompareLogRequestHeader(CommandHeader):
    """Ours: digests of ``[begin_offset, end_offset)`` in blocks of ``block_size`` bytes."""

    begin_offset: Int64
    end_offset: Int64
    block_size: int
