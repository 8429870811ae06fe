"""The plan: the operations of each node, as JSON and as lines to read and sign off.

Its id is the start of the SHA-256 of its content without the time, so the same state gives the same
plan. A node carries out its own part only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from rmqpy.audit.replicas.certificate import signature_of
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean
from rmqpy.model.text import count_text, format_bytes
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.operations import Op, op_from_json, op_to_json

PLAN_FORMAT = 1
_ID_DIGITS = 12


@define(slots=True, frozen=True, kw_only=True)
class NodePlan:
    """One replica's part.

    ``root`` is its storePathRootDir. ``keep`` is the folder for files that are moved aside or built
    ahead of time; ``finalize`` and a rollback remove it.
    """

    replica: str
    root: str
    keep: str
    ops: tuple[Op, ...]
    notes: tuple[str, ...] = ()

    @property
    def written_bytes(self) -> int:
        """The number of bytes that this part writes at most."""
        return sum(op.written_bytes for op in self.ops)

    def summary(self, free: int | None) -> str:
        """Return what is done on this member as a line; ``free`` is the space of its disk."""
        counts = Counter(op.kind for op in self.ops)
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
        line = f"{self.replica} ({self.root}): {kinds}"
        if self.ops:
            line += f"; writes at most {format_bytes(self.written_bytes)}"
            line += f", {format_bytes(free)} free" if free is not None else ""
        return line

    def to_json(self) -> dict[str, Any]:
        return {
            "replica": self.replica,
            "root": self.root,
            "keep": self.keep,
            "ops": [op_to_json(op) for op in self.ops],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> NodePlan:
        return cls(
            replica=value["replica"],
            root=value["root"],
            keep=value["keep"],
            ops=tuple(op_from_json(op) for op in value["ops"]),
            notes=tuple(value["notes"]),
        )


@define(slots=True, frozen=True, kw_only=True)
class Plan:
    """The parts of all nodes; ``steps`` names migrations, ``facts`` the state that was found."""

    steps: tuple[str, ...]
    nodes: tuple[NodePlan, ...]
    facts: dict[str, Any] = field(factory=dict)
    conflicts: tuple[str, ...] = ()
    created_ms: int = 0

    @property
    def id(self) -> str:
        content = self._content()
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(text).hexdigest()[:_ID_DIGITS]

    def node(self, name: str) -> NodePlan:
        """Return the part of one replica, given its name or its directory."""
        for node in self.nodes:
            if name in (node.replica, node.root):
                return node
        known = [node.replica for node in self.nodes]
        raise RmqError(
            f"found no part for {name} in the plan, expected one of {', '.join(known)}; correct the"
            f" name{did_you_mean(name, known)}"
        )

    @property
    def is_empty(self) -> bool:
        return not any(node.ops for node in self.nodes)

    def to_json(
        self, key: bytes | None = None, space: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """Return the JSON form, signed if ``key`` is given.

        ``space`` is what the parts need, for readers; it is not part of what ``id`` stands for.
        """
        value = {
            "format": PLAN_FORMAT,
            "id": self.id,
            "created_ms": self.created_ms,
            **self._content(),
            **({"space": list(space)} if space else {}),
        }
        return value | {"signature": signature_of(value, key)} if key else value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """Decode a plan. Raise RmqError for another format or an id that does not match."""
        if value.get("format") != PLAN_FORMAT:
            raise RmqError(
                f"a plan of format {value.get('format')!r}, expected {PLAN_FORMAT}; use the rmqpy"
                " version that created it"
            )
        plan = cls(
            steps=tuple(value["steps"]),
            nodes=tuple(NodePlan.from_json(node) for node in value["nodes"]),
            facts=value["facts"],
            conflicts=tuple(value["conflicts"]),
            created_ms=value["created_ms"],
        )
        if plan.id != value["id"]:
            raise RmqError(
                f"the plan has the id {value['id']}, but its content has {plan.id}: it was changed"
                " after it was created; plan again"
            )
        return plan

    def lines(
        self, free: Mapping[str, int] | None = None, *, details: bool = False
    ) -> Iterator[str]:
        """Yield the readable form: what is done on each member, on a disk that has ``free`` bytes
        (by replica), and with ``details`` every operation.
        """
        yield f"plan {self.id}: {', '.join(self.steps)}"
        for node in self.nodes:
            yield node.summary((free or {}).get(node.replica))
        for name, value in self.facts.items():
            yield from _fact_lines(name, value)
        for conflict in self.conflicts:
            yield f"  CONFLICT {conflict}"
        yield from (f"  note: {note}" for note in self.note_lines())
        count = sum(len(node.ops) for node in self.nodes)
        if count and not details:
            yield f"{count_text(count, 'operation')}; --details lists them"
        for node in self.nodes if details else ():
            if node.ops:
                yield f"{node.replica}:"
            yield from (f"  {op_line(op)}" for op in node.ops)

    def note_lines(self) -> Iterator[str]:
        """Yield the notes of all members, those that are the same for all of them once."""
        every = [note for node in self.nodes[:1] for note in node.notes]
        common = [note for note in every if all(note in each.notes for each in self.nodes)]
        yield from common
        for node in self.nodes:
            yield from (f"{node.replica}: {note}" for note in node.notes if note not in common)

    def _content(self) -> dict[str, Any]:
        return {
            "steps": list(self.steps),
            "facts": self.facts,
            "conflicts": list(self.conflicts),
            "nodes": [node.to_json() for node in self.nodes],
        }


def check_signed(value: dict[str, Any], key: bytes | None) -> None:
    """Raise UpgradeRefusedError unless the holder of ``key`` signed exactly this plan.

    An unsigned plan passes only without a key, a signed one only with its key.
    """
    signature = value.get("signature")
    if signature is None and key is None:
        return
    if key is None:
        raise UpgradeRefusedError("the plan is signed: give the key with --key")
    if signature is None:
        raise UpgradeRefusedError("the plan is not signed: sign it when planning, with --key")
    if not hmac.compare_digest(str(signature), signature_of(value, key)):
        raise UpgradeRefusedError(
            "the signature does not match: the plan was changed after it was signed, or it was"
            " signed with another key. Give that key, or plan again with the key"
        )


def op_line(op: Op) -> str:
    """Return one operation as a line to read."""
    fields = op_to_json(op)
    where = f" [{fields['start']}, {fields['end']})" if "start" in fields else ""
    to = f" -> {fields['to']}" if "to" in fields else ""
    source = f" from {fields['replica']}" if "replica" in fields else ""
    digests = ""
    if "after" in fields:
        digests = f"  {fields.get('before', 'absent')[:12]} -> {fields['after'][:12]}"
    why = f"  # {op.why}" if op.why else ""
    return f"{op.kind} {op.path}{where}{to}{source}{digests}{why}"


def _fact_lines(name: str, value: object) -> Iterator[str]:
    """Yield a fact; one about several members has a line for each."""
    if isinstance(value, dict) and any(isinstance(each, dict) for each in value.values()):
        yield f"  {name}:"
        for inner, each in value.items():
            yield f"    {inner}: {_short(each)}"
    else:
        yield f"  {name}: {_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(each)}" for name, each in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
