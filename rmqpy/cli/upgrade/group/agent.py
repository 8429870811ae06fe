"""``rmqpy upgrade agent``: carry out on this host what the machine that drives an upgrade asks.

It speaks :mod:`rmqpy.upgrade.link.frames` on its standard streams, and ends when they are closed.
Over ssh it may do what the user of the connection may do; ``rmqpy upgrade serve`` limits it to the
directory that is served (:mod:`rmqpy.cli.upgrade.group.limits`).
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from rmqpy import __version__
from rmqpy.cli.given_files import read_given
from rmqpy.cli.parsing import EXIT_DONE, EXIT_FAILED, add_log_options
from rmqpy.cli.upgrade.base.replicas import local_replicas
from rmqpy.cli.upgrade.group.limits import AgentLimits, limits_of
from rmqpy.cli.upgrade.group.shell import is_free_port, run_shell
from rmqpy.model.errors import NetworkError, RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.checks.requests import ReplicaRequests
    from rmqpy.upgrade.link.frames import ByteReader, ByteWriter, Frame


def add_verbs(verbs: Commands) -> None:
    text = "answer the machine that drives an upgrade; started by ssh or by serve --drive"
    agent = verbs.add_parser("agent", help=text, description=text)
    agent.add_argument("--only", metavar="DIR", help="answer about this directory only")
    agent.add_argument("-c", dest="config", metavar="FILE", help="with --only: its broker.conf")
    agent.add_argument(
        "--allow",
        action="append",
        metavar="COMMAND",
        help="with --only: a command that starts or stops its broker",
    )
    add_log_options(agent)
    agent.set_defaults(command=_agent)


def _agent(options: argparse.Namespace) -> int:
    output = sys.stdout.buffer
    with redirect_stdout(sys.stderr):  # nothing but frames may appear on the standard output
        Agent(sys.stdin.buffer, output, limits_of(vars(options))).serve()
    return EXIT_DONE


@define(slots=True)
class Agent:
    """The agent's end of a link."""

    reader: ByteReader
    writer: ByteWriter
    limits: AgentLimits | None = None
    _requests: dict[tuple[str, str], ReplicaRequests] = field(factory=dict)

    def serve(self) -> None:
        """Answer until the other side closes the connection."""
        from rmqpy.upgrade.link.frames import PROTOCOL, Frame, read_frame, write_frame

        write_frame(self.writer, Frame("hello", {"protocol": PROTOCOL, "version": __version__}))
        while (frame := read_frame(self.reader)) is not None:
            try:
                answer = self._answer(frame)
            except NetworkError:
                raise
            except (RmqError, ValueError, KeyError, TypeError, OSError) as error:
                answer = Frame("refused", {"text": str(error) or repr(error)})
            write_frame(self.writer, answer)

    def _answer(self, frame: Frame) -> Frame:
        from rmqpy.upgrade.link.frames import Frame

        if self.limits is not None:
            self.limits.check(frame)
        match frame.kind:
            case "get":
                requests = self._requests_of(frame.head)
                return Frame("data", {}, requests.answer(frame.head["what"], frame.head["query"]))
            case "run":
                code, printed = self._run(frame.head["words"], frame.body)
                return Frame("done", {"code": code}, printed.encode())
            case "config":
                path = frame.head["path"]
                home = {"HOME": os.environ.get("HOME", "")}
                return Frame("data", home, read_given(path, "the broker.conf"))
            case "port":
                free = is_free_port(int(frame.head["port"]))
                return Frame("data", {"free": free})
            case "shell":
                if frame.head.get("dry_run"):
                    return Frame("done", {"code": EXIT_DONE})
                code, shown = run_shell(frame.head["command"], Path.cwd())
                return Frame("done", {"code": code}, shown.encode())
        raise RmqError(f"found a frame {frame.kind!r}, expected get, run, shell, config, or port")

    def _requests_of(self, head: Mapping[str, Any]) -> ReplicaRequests:
        """Return the requests of a directory; what was learned about it is kept."""
        from rmqpy.upgrade.checks.requests import ReplicaRequests

        key = head["directory"], head["config"]
        if key not in self._requests:
            name, config = head["name"], head["config"]
            given = argparse.Namespace(
                replica=[f"{name}={head['directory']}"],
                config=[f"{name}={config}"] if config else [],
                may_be_empty=True,
            )
            (replica,) = local_replicas(given)
            self._requests[key] = ReplicaRequests(replica)
        return self._requests[key]

    def _run(self, words: list[str], plan: bytes) -> tuple[int, str]:
        from rmqpy.cli import main

        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
            path = Path(folder) / "plan.json"
            path.write_bytes(plan)
            placed = [str(path) if word == "{plan}" else word for word in words]
            try:
                code = main(["upgrade", *placed], ask_driver=self._ask)
            except SystemExit as error:  # the parser has printed what is wrong
                code = error.code if isinstance(error.code, int) else EXIT_FAILED
        return code, printed.getvalue()

    def _ask(self, replica: str, what: str, query: Mapping[str, object]) -> bytes:
        """Return the driving machine's answer to a question about another member."""
        from rmqpy.upgrade.link.frames import Frame, read_frame, write_frame

        texts = {name: str(value) for name, value in query.items()}
        write_frame(self.writer, Frame("ask", {"replica": replica, "what": what, "query": texts}))
        answer = read_frame(self.reader)
        if answer is None:
            raise NetworkError(f"the connection is lost while {replica} was asked for its {what}")
        if answer.kind != "data":
            raise RmqError(f"{replica}: {answer.head.get('text')}")
        return answer.body
