"""The commands that control a test cluster, as JSON objects: ``{"do": "pause", "node": "n0"}``.

=================  ==================================  ============================================
command            arguments                           effect
=================  ==================================  ============================================
``status``                                             the state of every server
``leader``                                             wait for a master; its name and address
``topic``          ``name``, ``queues`` (4)            create a topic
``stop``           ``node``                            an orderly stop
``start``          ``node``                            start again after ``stop`` or ``kill``
``kill``           ``node``                            an end as after kill -9
``pause``          ``node``                            connections stay open, and nothing is read
``resume``         ``node``                            continue after ``pause``
``partition``      ``nodes``: a list of names          separate these servers from the others
``heal``                                               end the partition
``slow_disk``      ``node``, ``seconds``               let each sync of the disk take that long
``advance``        ``seconds``                         advance the clock of all brokers
``quit``                                               end ``rmqpy dev``
=================  ==================================  ============================================

``node`` may be left out if there is one broker. The answer is ``{"ok": true}`` with the values of
the command, or ``{"ok": false, "error": "..."}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean
from rmqpy.testing.dev.cluster import QUEUES, DevCluster
from rmqpy.testing.dev.nodes import DevError, NodeState

Answer = dict[str, Any]
QUIT = "quit"


class Commands:
    """The commands of one cluster."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._table: Mapping[str, tuple[Callable[[_Arguments], Answer], frozenset[str]]] = {
            "status": (self._status, frozenset()),
            "leader": (self._leader, frozenset()),
            "topic": (self._topic, frozenset({"name", "queues"})),
            "stop": (self._stop, frozenset({"node"})),
            "start": (self._start, frozenset({"node"})),
            "kill": (self._kill, frozenset({"node"})),
            "pause": (self._pause, frozenset({"node"})),
            "resume": (self._resume, frozenset({"node"})),
            "partition": (self._partition, frozenset({"nodes"})),
            "heal": (self._heal, frozenset()),
            "slow_disk": (self._slow_disk, frozenset({"node", "seconds"})),
            "advance": (self._advance, frozenset({"seconds"})),
            QUIT: (lambda _arguments: {}, frozenset()),
        }

    def run(self, command: object) -> Answer:
        """Carry out one command and return its answer; a wrong one has no effect."""
        try:
            return {"ok": True, **self._run(command)}
        except (RmqError, OSError) as error:
            return {"ok": False, "error": str(error)}

    def _run(self, command: object) -> Answer:
        if not isinstance(command, dict) or not isinstance(command.get("do"), str):
            raise DevError(f'found {command!r}, expected an object such as {{"do": "status"}}')
        name = command["do"]
        if name not in self._table:
            hint = did_you_mean(name, self._table)
            raise DevError(f"command {name!r}: expected one of {', '.join(self._table)}{hint}")
        work, known = self._table[name]
        given = {key: value for key, value in command.items() if key != "do"}
        for key in given.keys() - known:
            raise DevError(
                f"{name}: found {key!r}, expected {', '.join(sorted(known)) or 'nothing'}"
            )
        return work(_Arguments(name, given))

    def _status(self, _arguments: _Arguments) -> Answer:
        nodes: dict[str, dict[str, object]] = {}
        for name, node in self._cluster.nodes.items():
            nodes[name] = {"address": node.address, "state": node.state.value}
        for name, broker in self._cluster.brokers.items():
            nodes[name] |= {"leads": broker.leads, "now_ms": broker.now_ms()}
        return {"nodes": nodes, "partitioned": self._cluster.partitioned}

    def _leader(self, _arguments: _Arguments) -> Answer:
        leader = self._cluster.wait_for_leader()
        return {"node": leader.name, "address": leader.address}

    def _topic(self, arguments: _Arguments) -> Answer:
        self._cluster.create_topic(arguments.text("name"), arguments.count("queues", QUEUES))
        return {}

    def _stop(self, arguments: _Arguments) -> Answer:
        self._cluster.node(arguments.name()).stop()
        return {}

    def _start(self, arguments: _Arguments) -> Answer:
        self._cluster.node(arguments.name()).start()
        return {}

    def _kill(self, arguments: _Arguments) -> Answer:
        self._cluster.node(arguments.name()).kill()
        return {}

    def _pause(self, arguments: _Arguments) -> Answer:
        node = self._cluster.node(arguments.name())
        if node.state is NodeState.STOPPED:
            raise DevError(f"{node.name}: found a stopped server, expected a running one; start it")
        node.thread.pause()
        return {}

    def _resume(self, arguments: _Arguments) -> Answer:
        self._cluster.node(arguments.name()).thread.resume()
        return {}

    def _partition(self, arguments: _Arguments) -> Answer:
        self._cluster.partition(arguments.names())
        return {}

    def _heal(self, _arguments: _Arguments) -> Answer:
        self._cluster.partition([])
        return {}

    def _slow_disk(self, arguments: _Arguments) -> Answer:
        seconds = arguments.seconds()
        disk = self._cluster.broker(arguments.name()).disk
        if seconds == 0:
            disk.interrupt()
        disk.sync_seconds = seconds
        return {}

    def _advance(self, arguments: _Arguments) -> Answer:
        self._cluster.advance(round(arguments.seconds() * 1000))
        return {}


class _Arguments:
    """The arguments of one command, checked when they are read."""

    def __init__(self, command: str, given: Mapping[str, object]) -> None:
        self._command = command
        self._given = given

    def name(self) -> str | None:
        """Return ``node``, or None if it is absent."""
        value = self._given.get("node")
        if value is not None and not isinstance(value, str):
            raise self._error("node", "a name")
        return value

    def text(self, key: str) -> str:
        value = self._given.get(key)
        if not isinstance(value, str) or not value:
            raise self._error(key, "a text")
        return value

    def count(self, key: str, default: int) -> int:
        value = self._given.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._error(key, "a number above 0")
        return value

    def seconds(self) -> float:
        value = self._given.get("seconds")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
            raise self._error("seconds", "a number of seconds, 0 or more")
        return float(value)

    def names(self) -> list[str]:
        value = self._given.get("nodes")
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._error("nodes", "a list of names")
        return value

    def _error(self, key: str, expected: str) -> DevError:
        found = self._given.get(key, "nothing")
        return DevError(f"{self._command}: found {key} = {found!r}, expected {expected}")
