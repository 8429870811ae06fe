"""The recording of one run, and a page that shows it on a time axis.

The recorder listens to the network and to the trace, and adds no event of its own: a run that is
recorded is the same run. The page is one file without references to others.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from attrs import define, field

from rmqpy.model.codes import RequestCode
from simulator.broker_host import BrokerHost
from simulator.host import Host
from simulator.node_host import NodeHost
from simulator.runner import AnyCluster

PAGE = Path(__file__).with_suffix(".html")
MESSAGES_MAX = 60_000
SAMPLE_MS = 20
HEAD = re.compile(rb'"code":(-?\d+)'), re.compile(rb'"flag":(\d+)')
"""The code and the flag in the head of a frame."""

MEMBER = re.compile(r"\bn\d+\b")


@define(frozen=True)
class MemberSample:
    """A member at one time: its state, term, end of its log, and what it has committed.

    Ends are indexes of entries; those of a log without entries are offsets in bytes.
    """

    time_ms: int
    state: str
    term: int
    end: int
    committed: int


@define(eq=False)
class RunRecorder:
    """Records a cluster, whose ``trace`` it replaces."""

    cluster: AnyCluster
    samples: dict[str, list[MemberSample]] = field(factory=dict)
    messages: list[list[int]] = field(factory=list)
    """Sent at, arrived at (-1: never), sender, receiver, kind; the last three are indexes."""

    names: list[str] = field(factory=list)
    kinds: list[str] = field(factory=list)
    dropped: int = 0
    """Messages that were not recorded."""

    _sampled_ms: int = -SAMPLE_MS

    def __attrs_post_init__(self) -> None:
        self.names += [host.name for host in self.hosts()]
        self.samples.update({name: [] for name in self.names})
        self.cluster.network.watch = self._carried
        self.cluster.trace = _RecordedTrace(self.sample)

    def hosts(self) -> Iterable[Host]:
        hosts = self.cluster.hosts
        return hosts.values() if isinstance(hosts, dict) else hosts

    def sample(self) -> None:
        """Record the state of each member that has changed."""
        now_ms = self._sampled_ms = self.cluster.timeline.now_ms
        for host in self.hosts():
            rows = self.samples[host.name]
            state, term, end, committed = _state(host, now_ms)
            last = rows[-1] if rows else None
            if last is None or (last.state, last.term, last.end, last.committed) != (
                state,
                term,
                end,
                committed,
            ):
                rows.append(MemberSample(now_ms, state, term, end, committed))

    def _carried(self, sender: str, to: str, piece: bytes, arrive: Any) -> Any:
        now_ms = self.cluster.timeline.now_ms
        if now_ms - self._sampled_ms >= SAMPLE_MS:
            self.sample()
        if len(self.messages) >= MESSAGES_MAX:
            self.dropped += 1
            return arrive
        row = [now_ms, -1, _index(self.names, sender), _index(self.names, to)]
        row.append(_index(self.kinds, _kind(piece)))
        self.messages.append(row)

        def arrived() -> None:
            if row[1] < 0:
                row[1] = self.cluster.timeline.now_ms
            arrive()

        return arrived

    def page(self, title: str, violation: str) -> str:
        """Return the page. ``violation`` is the invariant that the run has broken, or ""."""
        self.sample()
        events = []
        for line in self.cluster.trace or ():
            time, _, text = line.partition(" ")
            events.append([int(time), text, _kind_of_event(text)])
        now_ms = self.cluster.timeline.now_ms
        if violation:
            events.append([now_ms, f"VIOLATION: {violation}", "violation"])
        data = {
            "title": title,
            "plan": str(self.cluster.plan),
            "end": now_ms,
            "violation": violation,
            "accused": sorted({*MEMBER.findall(violation)} & {*self.samples}),
            "members": {
                name: [[s.time_ms, s.state, s.term, s.end, s.committed] for s in rows]
                for name, rows in self.samples.items()
            },
            "names": self.names,
            "kinds": self.kinds,
            "messages": self.messages,
            "dropped": self.dropped,
            "events": events,
        }
        return _page(title, data)


class _RecordedTrace(list[str]):
    """A trace that lets the recorder look at the members with each line."""

    def __init__(self, on_line: Any) -> None:
        super().__init__()
        self._on_line = on_line

    def append(self, line: str) -> None:
        super().append(line)
        self._on_line()


def _state(host: Host, now_ms: int) -> tuple[str, int, int, int]:
    if host.life is None:
        return "down", -1, -1, -1
    state, term, end, committed = "starts", -1, -1, -1
    if isinstance(host, BrokerHost) and host.running is not None:
        driver, log = host.running.driver, host.running.store.log
        if driver is None:
            state, end, committed = "classic", log.max_offset, log.confirm_offset
        else:
            end = driver.entries.end.index
    elif isinstance(host, NodeHost):
        end = host.disk.log.end.index
    node = host.node
    if node is not None:
        state, term, committed = node.role.value.lower(), node.term, node.committed_index
    if host.life.paused_until_ms > now_ms:
        state = "paused"
    return state, term, end, committed


def _kind(piece: bytes) -> str:
    head = piece[8 : 8 + (int.from_bytes(piece[4:8], "big") & 0xFFFFFF)]
    code, flag = (int(found[1]) if (found := each.search(head)) else 0 for each in HEAD)
    if flag & 1:
        return "answer"
    try:
        return RequestCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "piece"


def _kind_of_event(text: str) -> str:
    """Return the group of an event, which decides its colour."""
    if re.search(r"LEADER|leads in|decided|FOLLOWER|CANDIDATE|election|stepping", text):
        return "role"
    if re.search(r"starts|heal|truce|restart", text):
        return "good"
    return "fault"


def _index(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def _page(title: str, data: dict[str, Any]) -> str:
    """Fill the page: data as JSON that no text can leave, and a policy that allows its script."""
    text = PAGE.read_text(encoding="utf-8")
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    packed = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    for mark, value in (("%TITLE%", escape(title)), ("%SCRIPT%", digest), ("%DATA%", packed)):
        text = text.replace(mark, value)
    return text
