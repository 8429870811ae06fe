"""Requests that differ only in the values of some ext fields, such as all sends to one broker.

The rest of their headers is encoded once. Their frames are those of
:func:`rmqpy.remoting.frame.encode_head`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from attrs import define, evolve

from rmqpy.remoting.command import SERIALIZE_JSON, RemotingCommand
from rmqpy.remoting.command_header import CommandHeader, header_fields
from rmqpy.remoting.fastjson import escape
from rmqpy.remoting.frame import frame_prefix, json_header

TEMPLATES_MAX: Final = 10_000
"""The number of templates that a client keeps for one purpose."""


class RequestTemplate:
    """The request ``command``, in which the ext fields ``varying``, two at least, have other values
    each time.
    """

    def __init__(self, command: RemotingCommand, varying: Sequence[str]) -> None:
        assert command.serialize_type == SERIALIZE_JSON, command
        self.code = command.code
        self._command = command
        self._varying = tuple(varying)
        fields = command.ext_fields | dict.fromkeys(varying, "")
        text = json_header(evolve(command, ext_fields=fields), 0, 0).replace("%", "%%")
        # Quotes inside a value are escaped, so each of the texts that are replaced occurs once.
        order = sorted(varying, key=lambda name: text.index(f'"{name}":""'))
        for name in order:
            text = text.replace(f'"{name}":""', f'"{name}":"%s"')
        self._text = text.replace('"flag":0', '"flag":%d').replace('"opaque":0', '"opaque":%d')
        self._in_order = itemgetter(*map(self._varying.index, order))

    def head(self, values: Sequence[str | int], body_length: int, opaque: int, flag: int) -> bytes:
        """Return the frame of a request up to its body. ``values`` are in the order of
        ``varying``. Raises as :func:`rmqpy.remoting.frame.encode_head`.
        """
        texts = [value if type(value) is int else escape(value) for value in self._in_order(values)]
        header = (self._text % (*texts, flag, opaque)).encode("utf-8", "replace")
        return frame_prefix(self._command, len(header), body_length) + header

    def command(self, values: Sequence[str | int], body: bytes) -> RemotingCommand:
        """Return the request with these values."""
        changed = dict(zip(self._varying, map(str, values), strict=True))
        return evolve(self._command, ext_fields=self._command.ext_fields | changed, body=body)


def varying_fields(header: type[CommandHeader], attributes: Sequence[str]) -> tuple[str, ...]:
    """Return the names on the wire of these attributes of a header."""
    names = {item.attribute: item.wire_name for item in header_fields(header)}
    return tuple(names[attribute] for attribute in attributes)


@define(slots=True)
class TemplatedRequest:
    """A request with the header of ``template`` and these values."""

    template: RequestTemplate
    values: Sequence[str | int]
    body: bytes

    def head(self, opaque: int, flag: int) -> bytes:
        """Return the frame up to the body."""
        return self.template.head(self.values, len(self.body), opaque, flag)

    def command(self) -> RemotingCommand:
        """Return the request as a command."""
        return self.template.command(self.values, self.body)


Request: TypeAlias = RemotingCommand | TemplatedRequest


def command_of(request: Request) -> RemotingCommand:
    """Return ``request`` as a command."""
    return request.command() if isinstance(request, TemplatedRequest) else request
