"""Headers that differ from earlier ones of the same connection in their values only.

Most responses that a client receives answer the same few requests. Their JSON headers then differ
in the opaque and the values of the ext fields, and one regular expression reads such a header in
half the time. It is built after ``PARSED_MIN`` headers, from one that has the form in which brokers
write headers; whatever it does not match is parsed as always, with the same result.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final

from attrs import evolve, field

from rmqpy.model.values import define
from rmqpy.remoting.command import (
    FLAG_RESPONSE,
    LANGUAGE_JAVA,
    SERIALIZE_JSON,
    RemotingCommand,
)
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.frame import MAX_HEADER, WORD_BYTES, decode_command, json_header
from rmqpy.remoting.java_values import java_hash_order

FORMS_MAX: Final = 4
PARSED_MIN: Final = 64
"""The number of headers after which building an expression pays."""
ATTEMPTS_MAX: Final = 64
"""The number of headers of other forms after which no more are looked at."""

_WORD: Final = Struct(">I")
_VALUE: Final = '([^"]*)'
_NAME: Final = re.compile("[A-Za-z0-9_]+")
_NUMBER: Final = "(0|[1-9][0-9]{0,8})"


@define(slots=True, frozen=True)
class _Form:
    pattern: re.Pattern[str]
    names: tuple[str, ...]
    code: int
    version: int
    remark: str | None


@define(slots=True, eq=False)
class KnownHeaders:
    """The forms of the headers of one connection; there are at most ``FORMS_MAX``."""

    _forms: list[_Form] = field(factory=list)
    _parsed: int = 0
    _attempts: int = 0

    def decode_command(self, frame: memoryview) -> RemotingCommand:
        """See :func:`rmqpy.remoting.frame.decode_command`."""
        if self._forms:
            command = self._known(frame)
            if command is not None:
                return command
        command = decode_command(frame)
        self._parsed += 1
        if (
            self._parsed > PARSED_MIN
            and command.ext_fields
            and len(self._forms) < FORMS_MAX
            and self._attempts < ATTEMPTS_MAX
        ):
            self._attempts += 1
            self._learn(frame, command)
        return command

    def _known(self, frame: memoryview) -> RemotingCommand | None:
        if len(frame) < WORD_BYTES:
            return None
        (size,) = _WORD.unpack_from(frame)  # The serialize type in the first byte is 0, for JSON.
        end = WORD_BYTES + size
        if size > MAX_HEADER or end > len(frame):
            return None
        try:
            text = str(frame[WORD_BYTES:end], "ascii")
        except UnicodeDecodeError:
            return None
        if "\\" in text:  # A value may have an escape.
            return None
        for form in self._forms:
            found = form.pattern.fullmatch(text)
            if found is not None:
                values = found.groups()
                return RemotingCommand(
                    form.code,
                    int(values[-1]),
                    FLAG_RESPONSE,
                    LANGUAGE_JAVA,
                    form.version,
                    form.remark,
                    dict(zip(form.names, values)),  # noqa: B905 - the last value is the opaque
                    bytes(frame[end:]),
                    SERIALIZE_JSON,
                    header_type=CommandHeader,
                )
        return None

    def _learn(self, frame: memoryview, command: RemotingCommand) -> None:
        """Add the form of a response with ext fields, if it is one that brokers write."""
        fields = command.ext_fields
        if (
            command.flag != FLAG_RESPONSE
            or command.language != LANGUAGE_JAVA
            or command.serialize_type != SERIALIZE_JSON
            or not all(map(_NAME.fullmatch, (*fields, command.remark or "none")))
        ):
            return
        text = json_header(command, command.opaque, command.flag)
        if frame[WORD_BYTES : WORD_BYTES + len(text)] != text.encode("utf-8", "replace"):
            return
        empty = evolve(command, ext_fields=dict.fromkeys(fields, ""))
        pattern = re.escape(json_header(empty, 0, command.flag)).replace(
            '"opaque":0', f'"opaque":{_NUMBER}'
        )
        names = tuple(java_hash_order(fields))
        for name in names:
            pattern = pattern.replace(f'"{name}":""', f'"{name}":"{_VALUE}"')
        form = _Form(re.compile(pattern), names, command.code, command.version, command.remark)
        self._forms.append(form)
