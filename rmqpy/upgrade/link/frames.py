"""Frames between the machine that drives an upgrade and ``rmqpy upgrade agent`` on another host.

A frame is a line of JSON, and after it as many bytes as its member ``size`` says.

==========  ========  =========================================================================
frame       sent by   meaning
==========  ========  =========================================================================
``hello``   agent     the first frame: ``protocol``, the version of this form, and ``version``
``get``     driver    a question about a directory of the agent's host (``what``, ``query``)
``run``     driver    run ``words``, a verb of ``rmqpy upgrade``, with the body as its plan
``shell``   driver    run ``command``: the start or the stop of a broker; with ``dry_run``, only
                      say whether it may be run
``config``  driver    the content of the broker.conf ``path``; the answer has ``HOME``
``port``    driver    whether no process of the host listens on ``port`` (``free``)
``ask``     agent     while ``run``: a question about ``replica``, which the driver can read
``data``    both      the answer to these, and to ``get``: the body
``refused`` both      the answer instead: ``text`` says why
``done``    agent     the answer to ``run`` and ``shell``: ``code``; the body is what it printed
==========  ========  =========================================================================

Both sides wait for the answer before they send anything else.
"""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

from attrs import define

from rmqpy.model.errors import NetworkError

PROTOCOL: Final = 2
HEAD_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX: Final = 1 << 30


class ByteReader(Protocol):
    def readline(self, limit: int = ..., /) -> bytes: ...
    def read(self, size: int = ..., /) -> bytes: ...


class ByteWriter(Protocol):
    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...


@define(slots=True, frozen=True)
class Frame:
    """One frame; ``head`` has the members of its line, without ``kind`` and ``size``."""

    kind: str
    head: dict[str, Any]
    body: bytes = b""


def write_frame(stream: ByteWriter, frame: Frame) -> None:
    """Send a frame. Raise NetworkError if the other side is gone."""
    head = {"kind": frame.kind, **frame.head, "size": len(frame.body)}
    try:
        stream.write(json.dumps(head).encode() + b"\n")
        stream.write(frame.body)
        stream.flush()
    except (OSError, ValueError) as error:
        raise NetworkError(f"the connection is lost: {error}") from None


def read_frame(stream: ByteReader) -> Frame | None:
    """Return the next frame, or None at the end of the stream.

    Raise NetworkError if the stream ends within a frame or contains something else.
    """
    try:
        line = stream.readline(HEAD_BYTES_MAX)
        if not line:
            return None
        head = json.loads(line)
        size, kind = head.pop("size"), head.pop("kind")
        if not line.endswith(b"\n") or not isinstance(kind, str) or type(size) is not int:
            raise ValueError("its form is another one")
        if not 0 <= size <= BODY_BYTES_MAX:
            raise ValueError(f"its size is {size}")
        body = stream.read(size) if size else b""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NetworkError(
            f"found something else than a frame ({error!r}), expected one of rmqpy upgrade agent;"
            " use the same rmqpy on all hosts, and print nothing in the start files of the shell"
        ) from None
    except OSError as error:
        raise NetworkError(f"the connection is lost: {error}") from None
    if len(body) < size:
        raise NetworkError(f"the connection ended {size - len(body)} bytes too early")
    return Frame(kind, head, body)
