"""The settings of a running broker, for administrators: codes 25 (change) and 26 (read).

Only the keys of an allow-list can change at run time (``runtime`` in the tables of
:mod:`rmqpy.config`). A request changes all of its keys, or none if one of them is refused. A change
takes effect at once and is answered when it has been written to the configuration file. A broker
that was started without a file keeps changes in memory only, and reports that in its answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.services.registration import RegistrationService
from rmqpy.config.loading import (
    BrokerConfiguration,
    configuration_text,
    effective_lines,
    updated_configuration,
)
from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError, RequestRejectedError
from rmqpy.remoting.bodies import DataVersion
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import GetBrokerConfigResponseHeader
from rmqpy.store.files.deferred_write import DeferredFileWriter, Saved

logger = logging.getLogger(__name__)

REGISTERED_KEY = "brokerPermission"
"""The one key whose changes are sent to the name servers."""


@define(slots=True, frozen=True, eq=False, repr=False)
class SettingsFile:
    """The configuration file. ``unknown`` contains the keys of the file that rmqpy does not use,
    ``shared`` the values that come from another file.
    """

    file: DeferredFileWriter
    unknown: Mapping[str, str]
    shared: Mapping[str, str] = field(factory=dict)

    def save(self, identity: BrokerContext, done: Saved) -> None:
        """Write the settings of ``identity`` as they are when the write starts."""
        self.file.save(
            lambda: configuration_text(identity.configuration, self.unknown, self.shared).encode(),
            done,
        )


@define(slots=True, eq=False, kw_only=True, repr=False)
class BrokerConfigProcessor:
    """The processor of changes and reads. ``changed`` is called for each change,
    after ``identity`` has received it.
    """

    identity: BrokerContext
    registration: RegistrationService
    file: SettingsFile | None
    changed: Callable[[BrokerConfiguration], None]
    version: DataVersion
    _encoded: tuple[BrokerConfiguration, bytes] | None = field(default=None, init=False)
    """The last text and the configuration it was encoded from, kept because encoding takes half a
    millisecond, for which sends would wait.
    """

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update,
            RequestCode.GET_BROKER_CONFIG: self.read,
        }

    def read(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(
            request,
            header=GetBrokerConfigResponseHeader(version=self.version.encode().decode()),
            body=self._text(),
        )

    def _text(self) -> bytes:
        configuration = self.identity.configuration
        if self._encoded is None or self._encoded[0] is not configuration:
            lines = effective_lines(configuration)
            self._encoded = configuration, "".join(f"{line}\n" for line in lines).encode()
        return self._encoded[1]

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        if self.file is not None:
            self.file.file.check_not_full()
        try:
            text = decode_properties_bytes(request.body)
            changes = {each.key: each.value for each in parse_properties(text, "the request")}
        except ConfigError as fault:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(fault)) from None
        changed = updated_configuration(self.identity.configuration, changes)
        if changed == self.identity.configuration:
            return RemotingCommand.response_to(request)
        logger.info("settings changed by %s:%d: %s", *channel.peer, ", ".join(changes))
        self.apply(changed)
        if REGISTERED_KEY in changes:
            self.registration.register()
        return self.save(channel, request)

    def apply(self, changed: BrokerConfiguration) -> None:
        """Use other settings from now on."""
        self.identity.change_configuration(changed)
        self.version = DataVersion(self.version.timestamp, self.version.counter + 1)
        self.changed(changed)

    def save(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Write the settings to the file, then answer ``request``. Return the answer if there is no
        file.
        """
        if self.file is None:
            return RemotingCommand.response_to(
                request, remark="in effect until the next start: there is no configuration file"
            )

        def saved(error: BaseException | None) -> None:
            if request.is_oneway:
                return
            response = RemotingCommand.response_to(request)
            if error is not None:
                response.code = ResponseCode.SYSTEM_ERROR
                response.remark = f"in effect, but not on disk: {error}"
            channel.write(encode_command(response))

        self.file.save(self.identity, saved)
        return None
