"""RemotingCommand: one request or response, independent of its serialize type.

Invariants: ``language`` is the code of Java's LanguageCode (LANGUAGES has the names), even if a
peer sent an unknown code; an unknown name becomes LANGUAGE_UNKNOWN. ``body`` is empty where Java
has null. An ext field is absent rather than None.
"""

from __future__ import annotations

from typing import Final, Self

from attrs import define, field

from rmqpy.remoting.command_header import CommandHeader

SERIALIZE_JSON: Final = 0
SERIALIZE_ROCKETMQ: Final = 1

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

CURRENT_VERSION: Final = 407
"""The version V4_9_7, sent in requests and responses."""

_V4_0_0_SNAPSHOT: Final = 212
"""The first version number that follows the rule of :func:`version_text`: each minor version has
ten patches, and each patch is preceded by its snapshot.
"""

LANGUAGE_JAVA: Final = 0
LANGUAGE_CPP: Final = 1
LANGUAGE_PYTHON: Final = 3
LANGUAGE_OTHER: Final = 7
LANGUAGE_GO: Final = 9
LANGUAGE_UNKNOWN: Final = 255
"""The code of a language name in a JSON header that is not in LANGUAGES; it is never written."""

LANGUAGES: Final[tuple[str, ...]] = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
LANGUAGE_CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(LANGUAGES)}


def language_name(code: int) -> str | None:
    """Return the enum name of a language code, None outside the table."""
    return LANGUAGES[code] if 0 <= code < len(LANGUAGES) else None


@define(slots=True)
class RemotingCommand:
    """A request or response. The response flag decides whether ``code`` is a RequestCode or a
    ResponseCode.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: int = LANGUAGE_JAVA
    version: int = CURRENT_VERSION
    remark: str | None = None
    ext_fields: dict[str, str] = field(factory=dict)
    body: bytes = field(default=b"", repr=lambda body: f"<{len(body)} bytes>")
    serialize_type: int = SERIALIZE_JSON
    header_type: type[CommandHeader] | None = field(default=None, eq=False, kw_only=True)
    """The type that ``ext_fields`` was built from. It only affects the encoding: the order of the
    fields, and whether an empty header is written as ``{}`` or left out.
    """

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @classmethod
    def request(cls, code: int, header: CommandHeader | None = None, body: bytes = b"") -> Self:
        """Return a request without an opaque, which the sender sets."""
        return cls(
            int(code),
            ext_fields=header.encode() if header is not None else {},
            body=body,
            header_type=type(header) if header is not None else None,
        )

    @classmethod
    def response_to(
        cls,
        request: RemotingCommand,
        code: int = 0,
        remark: str | None = None,
        header: CommandHeader | None = None,
        body: bytes = b"",
    ) -> Self:
        """Return the response to ``request``, with the same opaque and serialize type."""
        return cls(
            int(code),
            opaque=request.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            ext_fields=header.encode() if header is not None else {},
            body=body,
            serialize_type=request.serialize_type,
            header_type=type(header) if header is not None else None,
        )


def version_text(version: int) -> str:
    """Return Java's name of a version, such as ``V4_9_7``, or ``V3(number)`` before 4.0."""
    if version < _V4_0_0_SNAPSHOT:
        return f"V3({version})"
    minor, rest = divmod(version - _V4_0_0_SNAPSHOT, 20)
    patch, released = divmod(rest, 2)
    name = f"V{4 + minor // 10}_{minor % 10}_{patch}"
    return name if released else f"{name}_SNAPSHOT"
