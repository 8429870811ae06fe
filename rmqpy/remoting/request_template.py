"""Requests that differ only in the values of some ext fields, such as all sends to one broker.

The rest of their headers is encoded once. Their frames are those of
:func:`rmqpy.remoting.frame.encode_head`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from attrs import evolve

from rmqpy.model.values import define
from rmqpy.remoting.command import SERIALIZE_JSON, RemotingCommand
from rmqpy.remoting.command_header import CommandHeader, header_fields
from rmqpy.remoting.fastjson import escape
from rmqpy.remoting.frame import frame_prefix, json_header

TEMPLATES_MAX: Final = 10_000
"""The number of templates that a client keeps for one purpose."""


class RequestTemplate:
    """The request ``command``, in which some ext fields have other values each time: first those
    of ``numbers``, then those of ``texts``.
    """

    def __init__(
        self, command: RemotingCommand, numbers: Sequence[str], texts: Sequence[str] = ()
    ) -> None:
        assert command.serialize_type == SERIALIZE_JSON, command
        self._command = command
        self._varying = (*numbers, *texts)
        self._numbers = len(numbers)
        fields = command.ext_fields | dict.fromkeys(self._varying, "")
        text = json_header(evolve(command, ext_fields=fields), 0, 0).replace("%", "%%")
        # Quotes inside a value are escaped, so each of the texts that are replaced occurs once.
        marks = [f'"{name}":""' for name in self._varying] + ['"flag":0', '"opaque":0']
        order = sorted(range(len(marks)), key=lambda number: text.index(marks[number]))
        for name in self._varying:
            text = text.replace(f'"{name}":""', f'"{name}":"%s"')
        self._text = text.replace('"flag":0', '"flag":%d').replace('"opaque":0', '"opaque":%d')
        self._in_order = itemgetter(*order)

    def head(self, values: Sequence[str | int], body_length: int, opaque: int, flag: int) -> bytes:
        """Return the frame of a request up to its body. Raises as
        :func:`rmqpy.remoting.frame.encode_head`.
        """
        count = self._numbers
        if len(values) > count:
            texts = map(escape, values[count:])  # type: ignore[arg-type]
            values = (*values[:count], *texts)
        text: str = self._text % self._in_order((*values, flag, opaque))
        header = text.encode("utf-8", "replace")
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

    def command(self) -> RemotingCommand:
        """Return the request as a command."""
        return self.template.command(self.values, self.body)


Request: TypeAlias = RemotingCommand | TemplatedRequest


def command_of(request: Request) -> RemotingCommand:
    """Return ``request`` as a command."""
    return request.command() if isinstance(request, TemplatedRequest) else request
