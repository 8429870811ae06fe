"""NameServer: the answers of a name server, from the tables of ``route_info`` and ``kv_config``.

An unknown request code is answered with code 3 (Java's name server does not answer, so that its
callers time out). The response to REGISTER_BROKER (103) contains the addresses of the master for a
slave, and the order topics.

A registration of many topics is decoded over several turns: ``handle`` returns it with the requests
after it, and goes on with it when it is passed again.

Invariants: each request that is not oneway gets exactly one answer, unless its channel closes
first; a refused request has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from attrs import define, field

from rmqpy.config.loading import (
    NamesrvConfiguration,
    configuration_text,
    effective_lines,
    updated_configuration,
)
from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError, RequestRejectedError
from rmqpy.model.files import FileSystem
from rmqpy.namesrv.access import NamesrvAccess
from rmqpy.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from rmqpy.namesrv.names import check_address, check_name
from rmqpy.namesrv.registration import ReadRegistration, read_registration
from rmqpy.namesrv.route_info import NamesrvLimits, RouteInfoTable
from rmqpy.remoting.bodies import DataVersion, KVTable, TopicList
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rmqpy.store.files.deferred_write import DeferredFileWriter

logger = logging.getLogger(__name__)

FIRST_SCAN_MS = 5_000
SCAN_PERIOD_MS = 10_000

VERSION_STRICT_JSON = 401
"""The version V4_9_4, from which on clients read routes as strict JSON."""
VERSION_ACTING_MASTER = 412
"""The version V5_0_0_SNAPSHOT, from which on clients may need the fields of 5.x."""

ROUTES_CACHED_BYTES_MAX = 64 << 20
"""The maximum size of all encoded routes that are kept; the oldest ones are removed. A route of a
topic on one broker has some 300 bytes.
"""

ROWS_PER_TURN = 4_000
"""The maximum number of registered topics that are decoded in a turn, which takes some 6 ms."""

BYTES_PER_ROW = 2_048
"""The bytes of a registration that cost as much to receive and compare as a topic to decode."""

IMMEDIATE = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_KV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
    }
)
"""The requests of clients and brokers, which never wait for the replies to others."""

REPLIES_PER_TURN = 512 * 1024
"""The size of all replies, in bytes, after which other requests than those wait for the next turn:
encoding a list takes milliseconds, and each of many connections may request some.
"""

NO_ROUTE = (
    "No topic route info in name server for the topic: {}\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)

Answer = Callable[[Channel, RemotingCommand], RemotingCommand | None]
"""A function that returns the response to a request, or None if it is sent later."""


class _RouteForm(Enum):
    """How a client reads routes: ``BARE`` with integers as keys, which is no JSON."""

    BARE = 0
    STRICT = 1
    OF_5X = 2


@define(slots=True)
class NameServerCounts:
    """Counters since the start."""

    refused: int = 0
    failures: int = 0
    expired: int = 0


@define(slots=True, eq=False, repr=False)
class NameServer:
    """The ``RequestHandler`` of a name server.

    ``start()`` reads kvConfig.json and starts to monitor the brokers. ``unknown`` contains the
    unknown keys of the settings file, which are kept when the file is rewritten.
    """

    configuration: NamesrvConfiguration
    scheduler: Scheduler
    files: FileSystem
    unknown: Mapping[str, str] = field(factory=dict)
    limits: NamesrvLimits = NamesrvLimits()  # noqa: RUF009 - a frozen value
    counts: NameServerCounts = field(factory=NameServerCounts)
    routes: RouteInfoTable = field(init=False)
    kv_config: KvConfig = field(init=False)
    access: NamesrvAccess = field(init=False)
    _settings_file: DeferredFileWriter = field(init=False)
    _answers: dict[int, Answer] = field(init=False)
    _encoded_routes: dict[tuple[str, _RouteForm], tuple[int, bytes]] = field(
        factory=dict, init=False
    )
    """The routes by topic and form of JSON, each with the version of the route that it shows."""
    _encoded_bytes: int = field(default=0, init=False)
    _encoded_lists: dict[int, tuple[int, bytes]] = field(factory=dict, init=False)
    """The topic lists by request code, each with the version of the routes that it shows."""
    _unfinished: dict[Channel, ReadRegistration] = field(factory=dict, init=False)
    """The registrations whose topics are not all decoded."""
    _rows_left: int = field(default=ROWS_PER_TURN, init=False)
    _reply_bytes: int = field(default=0, init=False)
    _timer: Timer | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.configuration.namesrv
        self.routes = RouteInfoTable(self.limits)
        kv_file = DeferredFileWriter(settings.kv_config_path, self.files, self.scheduler)
        self.kv_config = KvConfig(kv_file, self.limits.settings)
        self._settings_file = DeferredFileWriter(
            settings.config_store_path, self.files, self.scheduler
        )
        self.access = NamesrvAccess.from_configuration(
            self.configuration, self.files, self.scheduler
        )
        self._answers = self._answers_by_code()

    def start(self) -> None:
        """Load the access files and the settings. Raises StoreError if settings on disk cannot be
        read, and ConfigError if an access file is invalid.
        """
        self.access.start()
        self.kv_config.load(self.files)
        self._timer = self.scheduler.call_later(FIRST_SCAN_MS, self._scan)

    def stop(self) -> None:
        self.access.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- RequestHandler

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand]:
        for number, command in enumerate(commands, 1):
            if command.is_response:
                logger.info("ignored a response of %s:%d to no request", *channel.peer)
                continue
            if command.code == RequestCode.REGISTER_BROKER and self._rows_left <= 0:
                return commands[number - 1 :]
            if self._reply_bytes >= REPLIES_PER_TURN and command.code not in IMMEDIATE:
                return commands[number - 1 :]
            response = self._answer(channel, command)
            if self._is_unfinished(channel, command):
                return commands[number - 1 :]
            if response is not None:
                self._reply(channel, command, response)
            if channel.closed or channel.congested:  # the peer does not read its responses
                return commands[number:]
        return ()

    def turn_ended(self) -> None:
        """Allow the next turn to decode topics and to answer lists."""
        self._rows_left = ROWS_PER_TURN
        self._reply_bytes = 0

    def channel_closed(self, channel: Channel) -> None:
        self._unfinished.pop(channel, None)
        for address in self.routes.channel_closed(channel):
            if self._timer is None:  # The name server ends, and has closed it.
                continue
            logger.warning("removed broker %s: its connection was closed", address)

    # -- handling of a request

    def _answer(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        answer = self._answers.get(command.code)
        if answer is None:
            remark = f" request type {command.code} not supported"
            return _refused(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        try:
            if not self._is_unfinished(channel, command):
                self.access.check(channel, command)
            return answer(channel, command)
        except RequestRejectedError as refusal:
            self.counts.refused += 1
            return _refused(command, refusal.code, refusal.remark)
        except Exception as error:
            self.counts.failures += 1
            logger.exception("request %d of %s:%d failed", command.code, *channel.peer)
            return _refused(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _is_unfinished(self, channel: Channel, command: RemotingCommand) -> bool:
        read = self._unfinished.get(channel)
        return read is not None and read.request is command

    def _reply(self, channel: Channel, command: RemotingCommand, response: RemotingCommand) -> None:
        if command.is_oneway:
            return
        try:
            frame = encode_command(response)
        except RequestRejectedError as refusal:  # the response is larger than a frame
            frame = encode_command(_refused(command, refusal.code, refusal.remark))
        self._reply_bytes += len(frame)
        channel.write(frame)

    def _scan(self) -> None:
        self._timer = self.scheduler.call_later(SCAN_PERIOD_MS, self._scan)
        for address, channel in self.routes.tick(self.scheduler.monotonic_ms()):
            self.counts.expired += 1
            logger.warning("removed broker %s: its registration has expired", address)
            channel.close()

    def _answers_by_code(self) -> dict[int, Answer]:
        routes = self.routes
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._list(routes.all_topics),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._list(routes.system_topics),
            RequestCode.GET_UNIT_TOPIC_LIST: self._list(routes.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._list(routes.unit_sub_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._list(
                routes.unit_sub_ununit_topics
            ),
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_settings,
            RequestCode.GET_NAMESRV_CONFIG: self._get_settings,
        }

    # -- brokers

    def _register(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        read = self._unfinished.pop(channel, None)
        if read is None or read.request is not command:
            read = read_registration(command)
            self._rows_left -= len(command.body) // BYTES_PER_ROW
        if self.routes.needs_topics(read.registration):
            known = self.routes.known_rows(read.registration.broker_name)
            self._rows_left = read.decode(known, max(1, self._rows_left))
            if not self._rows_left:
                self._unfinished[channel] = read
                return None
        now_ms = self.scheduler.monotonic_ms()
        master = self.routes.register(read.registration, channel, now_ms)
        header = RegisterBrokerResponseHeader(
            ha_server_addr=master.ha_address, master_addr=master.master_address
        )
        order_topics = self.kv_config.namespace(ORDER_TOPIC_CONFIG)
        body = b"" if order_topics is None else KVTable(order_topics).encode()
        return RemotingCommand.response_to(command, header=header, body=body)

    def _unregister(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = UnRegisterBrokerRequestHeader.decode(command.ext_fields)
        self.routes.unregister(header.broker_name, header.broker_id, header.broker_addr)
        return RemotingCommand.response_to(command)

    def _query_data_version(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = QueryDataVersionRequestHeader.decode(command.ext_fields)
        check_name("brokerName", header.broker_name)
        check_address("brokerAddr", header.broker_addr)
        changed = self.routes.topics_changed(header.broker_addr, DataVersion.decode(command.body))
        if not changed:
            self.routes.touch(header.broker_addr, self.scheduler.monotonic_ms())
        known = self.routes.data_version(header.broker_addr)
        return RemotingCommand.response_to(
            command,
            header=QueryDataVersionResponseHeader(changed=changed),
            body=known.encode() if known is not None else b"",
        )

    # -- routes and lists

    def _route(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = GetRouteInfoRequestHeader.decode(command.ext_fields)
        form = _RouteForm.BARE
        if command.version >= VERSION_ACTING_MASTER:
            form = _RouteForm.OF_5X
        elif command.version >= VERSION_STRICT_JSON or header.accept_standard_json_only:
            form = _RouteForm.STRICT
        body = self._encoded_route(header.topic, form)
        if body is None:
            raise RequestRejectedError(ResponseCode.TOPIC_NOT_EXIST, NO_ROUTE.format(header.topic))
        return RemotingCommand.response_to(command, body=body)

    def _encoded_route(self, topic: str, form: _RouteForm) -> bytes | None:
        key, version = (topic, form), self.routes.route_version(topic)
        found = self._encoded_routes.get(key)
        if found is not None and found[0] == version:
            return found[1]
        self._forget_encoded_route(key)
        route = self.routes.route(topic)
        if route is None:
            return None
        if self.configuration.namesrv.order_message_enable:
            route.order_topic_conf = self.kv_config.get(ORDER_TOPIC_CONFIG, topic)
        if form is _RouteForm.OF_5X:
            for broker in route.broker_datas:
                broker.enable_acting_master = False
        body = route.encode(strict=form is not _RouteForm.BARE)
        self._encoded_routes[key] = version, body
        self._encoded_bytes += len(body)
        while self._encoded_bytes > ROUTES_CACHED_BYTES_MAX:
            self._forget_encoded_route(next(iter(self._encoded_routes)))
        return body

    def _forget_encoded_route(self, key: tuple[str, _RouteForm]) -> None:
        _, body = self._encoded_routes.pop(key, (0, b""))
        self._encoded_bytes -= len(body)

    def _order_changed(self, topic: str) -> None:
        for form in _RouteForm:
            self._forget_encoded_route((topic, form))

    def _list(self, topics: Callable[[], TopicList]) -> Answer:
        """Return the answer to a request for a list, which is encoded again after a change."""

        def answer(channel: Channel, command: RemotingCommand) -> RemotingCommand:
            version, body = self._encoded_lists.get(command.code, (-1, b""))
            if version != self.routes.version:
                body = topics().encode()
                self._encoded_lists[command.code] = self.routes.version, body
            return RemotingCommand.response_to(command, body=body)

        return answer

    def _cluster_info(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(command, body=self.routes.cluster_info().encode())

    def _topics_of_cluster(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = GetTopicsByClusterRequestHeader.decode(command.ext_fields)
        topics = self.routes.topics_of_cluster(header.cluster)
        return RemotingCommand.response_to(command, body=topics.encode())

    # -- administration

    def _wipe_write_perm(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = WipeWritePermOfBrokerRequestHeader.decode(command.ext_fields)
        count = self.routes.wipe_write_perm(header.broker_name)
        logger.info("removed the write permission of %d topics of %s", count, header.broker_name)
        answer = WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        return RemotingCommand.response_to(command, header=answer)

    def _add_write_perm(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = AddWritePermOfBrokerRequestHeader.decode(command.ext_fields)
        count = self.routes.add_write_perm(header.broker_name)
        logger.info("restored the write permission of %d topics of %s", count, header.broker_name)
        answer = AddWritePermOfBrokerResponseHeader(add_topic_count=count)
        return RemotingCommand.response_to(command, header=answer)

    def _delete_topic(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = DeleteTopicFromNamesrvRequestHeader.decode(command.ext_fields)
        self.routes.delete_topic(header.topic, header.cluster_name)
        return RemotingCommand.response_to(command)

    def _put_kv(self, channel: Channel, command: RemotingCommand) -> None:
        header = PutKVConfigRequestHeader.decode(command.ext_fields)
        self.kv_config.put(
            header.namespace, header.key, header.value, self._reply_when_saved(channel, command)
        )
        self._order_changed(header.key)

    def _delete_kv(self, channel: Channel, command: RemotingCommand) -> None:
        header = DeleteKVConfigRequestHeader.decode(command.ext_fields)
        self.kv_config.delete(
            header.namespace, header.key, self._reply_when_saved(channel, command)
        )
        self._order_changed(header.key)

    def _get_kv(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = GetKVConfigRequestHeader.decode(command.ext_fields)
        value = self.kv_config.get(header.namespace, header.key)
        if value is None:
            raise RequestRejectedError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return RemotingCommand.response_to(command, header=GetKVConfigResponseHeader(value=value))

    def _list_kv(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = GetKVListByNamespaceRequestHeader.decode(command.ext_fields)
        table = self.kv_config.namespace(header.namespace)
        if table is None:
            raise RequestRejectedError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return RemotingCommand.response_to(command, body=KVTable(table).encode())

    def _update_settings(
        self, channel: Channel, command: RemotingCommand
    ) -> RemotingCommand | None:
        self._settings_file.check_not_full()
        try:
            text = decode_properties_bytes(command.body)
            assigned = parse_properties(text, source="the request")
        except ConfigError as fault:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(fault)) from None
        changes = {each.key: each.value for each in assigned}
        changed = updated_configuration(self.configuration, changes)
        if changed == self.configuration:
            return RemotingCommand.response_to(command)
        logger.info("settings changed by %s:%d: %s", *channel.peer, ", ".join(changes))
        self.configuration = changed
        for key in list(self._encoded_routes):
            self._forget_encoded_route(key)
        self._settings_file.save(
            lambda: configuration_text(self.configuration, self.unknown).encode(),
            self._reply_when_saved(channel, command),
        )
        return None

    def _get_settings(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        body = "".join(f"{line}\n" for line in effective_lines(self.configuration)).encode()
        return RemotingCommand.response_to(command, body=body)

    def _reply_when_saved(
        self, channel: Channel, command: RemotingCommand
    ) -> Callable[[BaseException | None], None]:
        def saved(error: BaseException | None) -> None:
            if error is None:
                response = RemotingCommand.response_to(command)
            else:
                remark = f"in effect, but not on disk: {error}"
                response = _refused(command, ResponseCode.SYSTEM_ERROR, remark)
            self._reply(channel, command, response)

        return saved


def _refused(command: RemotingCommand, code: int, remark: str) -> RemotingCommand:
    return RemotingCommand.response_to(command, code, remark)
