"""Put-message hooks: code of the operator that sees each message of a producer before it is stored,
and may change its properties or refuse it (Java: PutMessageHook).

``rmqpyPutMessageHooks`` names entry points of the group ``rmqpy.put_message_hooks``. Only a broker
whose setting is not empty imports this module, and only it parses sends with
:class:`HookedSendRequestParser`; all others have neither a list of hooks nor a test for one. The
fast path leaves the sends of such a broker to Python.

What the broker itself writes (retries, delivered delayed messages, ends of transactions, replies)
does not pass the hooks: a refusal would lose a message that was acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol

from attrs import define, evolve

from rmqpy.broker.processors.send_request import SendRequestParser
from rmqpy.codec.message import BatchItem
from rmqpy.codec.properties import decode_properties, encode_properties
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import ConfigError, RequestRejectedError
from rmqpy.model.message import Host, OutgoingMessage
from rmqpy.model.near_names import did_you_mean

ENTRY_POINT_GROUP: Final = "rmqpy.put_message_hooks"

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True)
class OfferedMessage:
    """A message that a producer has sent and that is not stored yet.

    ``properties`` may be changed in place; everything else is read-only. ``topic`` and
    ``properties`` are those of the producer: a delayed message, or one of a transaction, has not
    been redirected yet, and the body is as sent, possibly compressed (``sys_flag``). Times are in
    ms since 1970.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    reconsume_times: int


class PutHook(Protocol):
    """An entry point of the group ``rmqpy.put_message_hooks`` is such a function, or a class that
    is created without arguments and whose instances are.

    It is called in the loop of the broker and must not block: all clients wait for it.
    """

    def __call__(self, message: OfferedMessage, /) -> None:
        """Accept ``message``, after changing ``message.properties`` if needed.

        Raise RequestRejectedError to refuse it: the producer receives its code and remark. After
        any other exception the message is refused with SYSTEM_ERROR.
        """


def load_hooks(names: str) -> dict[str, PutHook]:
    """Return the hooks of ``rmqpyPutMessageHooks``, names separated by ``;``, in their order.

    Raises ConfigError for a name that no installed package provides, or that cannot be loaded.
    """
    known = {each.name: each for each in entry_points(group=ENTRY_POINT_GROUP)}
    wanted = [name.strip() for name in names.split(";") if name.strip()]
    return {name: _load(name, known) for name in wanted}


def _load(name: str, known: Mapping[str, EntryPoint]) -> PutHook:
    where = f"rmqpyPutMessageHooks={name!r}"
    if name not in known:
        raise ConfigError(
            f"{where}: no installed package has an entry point of this name in the group"
            f" {ENTRY_POINT_GROUP}{did_you_mean(name, known)}; found:"
            f" {', '.join(sorted(known)) or 'none'}; install the package in the environment of the"
            " broker"
        )
    try:
        loaded = known[name].load()
        hook: PutHook = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise ConfigError(
            f"{where}: {known[name].value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(hook):
        raise ConfigError(f"{where}: {known[name].value} is neither a function nor a class of one")
    return hook


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class HookedSendRequestParser(SendRequestParser):
    """A parser of send requests whose messages pass ``hooks``, by name, in their order."""

    hooks: Mapping[str, PutHook]

    def _properties(self, draft: OutgoingMessage, raw: bytes) -> dict[str, str]:
        properties = decode_properties(raw)
        self._offer(draft, properties)
        return properties

    def _batch_draft(
        self, model: OutgoingMessage, item: BatchItem, common: bytes
    ) -> OutgoingMessage:
        properties = decode_properties(item.properties)
        self._offer(evolve(model, flag=item.flag, body=item.body), properties)
        item = evolve(item, properties=encode_properties(properties))
        return SendRequestParser._batch_draft(self, model, item, common)

    def _offer(self, draft: OutgoingMessage, properties: dict[str, str]) -> None:
        message = OfferedMessage(
            topic=draft.topic.decode(),
            queue_id=draft.queue_id,
            body=draft.body,
            properties=properties,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            born_timestamp_ms=draft.born_timestamp_ms,
            born_host=draft.born_host,
            reconsume_times=draft.reconsume_times,
        )
        for name, hook in self.hooks.items():
            try:
                hook(message)
                encode_properties(properties)
            except RequestRejectedError:
                raise
            except Exception as error:
                logger.exception("the put-message hook %s failed", name)
                raise RequestRejectedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the put-message hook {name} failed: {type(error).__name__}: {error}",
                ) from error
