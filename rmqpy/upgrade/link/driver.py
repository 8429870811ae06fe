"""The driving end of a link to ``rmqpy upgrade agent`` on another host.

A lost connection is opened again, and the request sent again: a ``get`` only reads, and verbs are
journaled, so a repeated one continues. Should the first agent still be at work, the lock of the
store refuses the second until it has ended. A host that has not answered yet is tried only twice:
its address may be wrong, and who waits for it should soon know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from attrs import define, field

from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.upgrade.link.connections import AgentConnection
from rmqpy.upgrade.link.frames import PROTOCOL, Frame, read_frame, write_frame

RETRY_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The pauses before a lost connection is opened again; after the last it is given up."""
T = TypeVar("T")
Answer = Callable[[Frame], Frame]
"""Returns the answer to a question of the agent."""


def attempted(
    attempt: Callable[[], T],
    lost: Callable[[NetworkError, float], None],
    sleep: Callable[[float], None],
) -> T:
    """Return what ``attempt`` returns; repeat it after each NetworkError, up to the last pause.

    ``lost`` is called before each pause with its seconds, and may raise to end the attempts.
    """
    for pause_s in RETRY_SECONDS:
        try:
            return attempt()
        except NetworkError as error:
            lost(error, pause_s)
            sleep(pause_s)
    return attempt()


@define(slots=True)
class AgentLink:
    """The link to the agent of one host.

    ``connect`` opens a connection, ``remedy`` says what to check if that fails, ``note`` tells of
    new attempts.
    """

    host: str
    connect: Callable[[], AgentConnection]
    remedy: str
    note: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    _connection: AgentConnection | None = field(default=None)
    _has_answered: bool = field(default=False)

    def request(self, frame: Frame, answer: Answer | None = None) -> Frame:
        """Send a frame and return the agent's answer to it.

        Questions of the agent are answered by ``answer``. Raise RmqError with the agent's text if
        it refuses, NetworkError if the host cannot be reached.
        """
        return self._attempted(lambda: self._exchange(frame, answer))

    def get(self, what: str, query: Mapping[str, object], at: Mapping[str, str]) -> bytes:
        """Return the answer to a question about a directory: ``at`` has its name and its paths."""
        texts = {name: str(value) for name, value in query.items()}
        return self.request(Frame("get", {"what": what, "query": texts, **at})).body

    def open(self) -> None:
        """Connect, unless that is done. Raise RmqError if the host lets nothing be changed."""
        self._attempted(self._opened)

    def close(self) -> None:
        """End the agent and forget the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _attempted(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns, with a new connection after each that is lost."""

        def lost(error: NetworkError, pause_s: float) -> None:
            self.close()
            if not self._has_answered and pause_s > RETRY_SECONDS[0]:
                raise error
            self.note(f"{self.host}: {error}; connecting again in {pause_s:.0f} s")

        try:
            return attempted(attempt, lost, self.sleep)
        except NetworkError as error:
            self.close()
            raise NetworkError(
                f"{self.host}: {error}; {self.remedy}, then run the command again"
            ) from None

    def _exchange(self, frame: Frame, answer: Answer | None) -> Frame:
        connection = self._opened()
        write_frame(connection.writer, frame)
        while True:
            found = read_frame(connection.reader)
            if found is None:
                raise NetworkError("the connection is lost")
            if found.kind == "ask" and answer is not None:
                write_frame(connection.writer, answer(found))
            elif found.kind == "refused":
                raise RmqError(f"{self.host}: {found.head.get('text')}")
            else:
                return found

    def _opened(self) -> AgentConnection:
        if self._connection is None:
            self._connection = self.connect()
            hello = read_frame(self._connection.reader)
            if hello is None:
                raise NetworkError("found no answer of rmqpy upgrade agent")
            if hello.kind != "hello" or hello.head.get("protocol") != PROTOCOL:
                raise RmqError(
                    f"{self.host}: found protocol {hello.head.get('protocol')} of rmqpy"
                    f" {hello.head.get('version')}, expected {PROTOCOL}; use the same rmqpy on all"
                    " hosts"
                )
            self._has_answered = True
        return self._connection
