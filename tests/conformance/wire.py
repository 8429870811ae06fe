"""The requests of a conformance scenario to one server, with its recorded answers.

A request is the recorded frame of a Java client with some fields changed. If there is none of that
code, it has the fields of Java's header class.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define, field

from conformance.compare import Seen, body_seen, masked_text
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command
from rmqpy.testing.blocking_connection import BlockingConnection, connect_when_ready

RETRY_SECONDS_MAX = 15.0
RETRY_PAUSE_SECONDS = 0.1
NOT_COMPARED = frozenset({"version"})
"""The fields whose values depend on the clock."""


def recorded_requests(path: Path) -> dict[int, RemotingCommand]:
    """Return the first recorded request of each code (tests/golden/wire/frames.jsonl)."""
    found: dict[int, RemotingCommand] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["type"] != "response" and "binary" not in row["from"]:
            frame = bytes.fromhex(row["frame"])
            found.setdefault(row["code"], decode_command(memoryview(frame)[LENGTH_BYTES:]))
    return found


@define
class Exchange:
    """A request, and its answer in comparable form."""

    code: int
    name: str
    seen: Seen
    more: bool = False


@define
class Wire:
    """The connections to one server and their exchanges.

    ``masks`` are the values that differ between servers, with their replacements.
    """

    address: str
    recorded: Mapping[int, RemotingCommand]
    masks: Mapping[str, str]
    exchanges: list[Exchange] = field(factory=list)
    _connections: dict[tuple[str, str], BlockingConnection] = field(factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def connection(self, name: str = "tool", address: str | None = None) -> BlockingConnection:
        """Return the connection with that name, which is opened on first use."""
        place = (name, address or self.address)
        if place not in self._connections:
            self._connections[place] = connect_when_ready(place[1])
        return self._connections[place]

    def request(self, code: int, body: bytes | None = None, /, **fields: object) -> RemotingCommand:
        """Return the recorded frame with these fields changed; a field of None is left out."""
        model = self.recorded.get(code)
        request = RemotingCommand(int(code))
        if model is not None:
            request.ext_fields = dict(model.ext_fields)
            request.body = model.body
        for name, value in fields.items():
            request.ext_fields.pop(name, None)
            if value is not None:
                request.ext_fields[name] = _text(value)
        if body is not None:
            request.body = body
        return request

    def exchange(
        self,
        request: RemotingCommand,
        *,
        on: str = "tool",
        more: bool = False,
        until: Callable[[RemotingCommand], bool] | None = None,
        address: str | None = None,
    ) -> RemotingCommand:
        """Send a request and record the answer; repeat the request ``until`` it is as expected."""
        connection = self.connection(on, address)
        deadline = time.monotonic() + RETRY_SECONDS_MAX
        answer = connection.call(request)
        while until is not None and not until(answer) and time.monotonic() < deadline:
            time.sleep(RETRY_PAUSE_SECONDS)
            answer = connection.call(request)
        self.note(request.code, "answer", self.seen(request.code, answer), more=more)
        return answer

    def relay(
        self,
        request: RemotingCommand,
        pushed: int,
        reply: Callable[[RemotingCommand], RemotingCommand | None],
        *,
        client: str = "client",
    ) -> RemotingCommand:
        """Send a request that the server passes on to the client; answer both, and record both."""
        tool = self.connection()
        tool.send(request)
        question = self.receive_pushed(pushed, client=client)
        response = reply(question)
        if response is not None:
            self.connection(client).answer(response)
        answer = tool.receive()
        self.note(request.code, "answer", self.seen(request.code, answer))
        return answer

    def receive_pushed(self, code: int, *, client: str = "client") -> RemotingCommand:
        """Receive and record a request from the server to the client."""
        question = self.connection(client).receive_pushed(code)
        fields = {name: masked_text(text, self.masks) for name, text in
                  sorted(question.ext_fields.items())}  # fmt: skip
        body = question.body
        seen: Seen = f"{len(body)} bytes"
        if code not in (39, 309, 326):
            seen = body_seen(code, body, self.masks)
        self.note(code, "pushed", {"fields": fields, "oneway": question.is_oneway, "body": seen})
        return question

    def seen(self, code: int, answer: RemotingCommand) -> Seen:
        fields = {
            name: masked_text(text, self.masks) if name not in NOT_COMPARED else "any"
            for name, text in sorted(answer.ext_fields.items())
        }
        return {
            "code": answer.code,
            "fields": fields,
            "body": body_seen(code, answer.body, self.masks),
        }

    def note(self, code: int, name: str, seen: Seen, *, more: bool = False) -> None:
        self.exchanges.append(Exchange(code, name, seen, more))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
