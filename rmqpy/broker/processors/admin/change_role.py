"""The CHANGE_ROLE request of rmqpy: make a broker of a classic group master or slave while it runs
(:mod:`rmqpy.broker.replication.classic_role`).

It is answered when the new role is in the configuration file.
"""

from __future__ import annotations

from functools import partial

from attrs import define

from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.processors.admin.broker_config import BrokerConfigProcessor
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.master_discovery import MasterAddress
from rmqpy.config.keys import BrokerRole, split_address
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import ChangeRoleRequestHeader


@define(slots=True, frozen=True, eq=False, repr=False)
class ChangeRoleProcessor:
    """The processor of the CHANGE_ROLE request."""

    role: ClassicRole
    settings: BrokerConfigProcessor

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_CHANGE_ROLE: self.answer}

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = ChangeRoleRequestHeader.decode(request.ext_fields)
        try:
            role = BrokerRole(header.role)
            if role is BrokerRole.SLAVE:
                for address in (header.master_addr, header.ha_server_addr):
                    split_address(address or "")
        except ValueError as error:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        end = PhysicalOffset(header.end)
        if self.settings.file is not None:
            self.settings.file.file.check_not_full()
        if role is BrokerRole.SLAVE:
            master = MasterAddress(header.master_addr or "", header.ha_server_addr or "")
            self.role.become_slave(header.broker_id or 0, end, master)
            return self.settings.save(channel, request)
        self.role.become_master(role, end, partial(self._changed, channel, request))
        return None

    def _changed(self, channel: Channel, request: RemotingCommand, failure: str) -> None:
        response: RemotingCommand | None
        if failure:
            response = RemotingCommand.response_to(
                request, code=ResponseCode.SYSTEM_ERROR, remark=failure
            )
        else:
            response = self.settings.save(channel, request)
        if response is not None and not request.is_oneway:
            channel.write(encode_command(response))
