"""Collect the facts of an election from the directories of members, or from running members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.facts.log_facts import read_log_facts
from rmqpy.audit.facts.small_files import ledger_state_problems
from rmqpy.dledger.state import HardState
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import StoreError
from rmqpy.remoting.fastjson import loads
from rmqpy.store.ledger.member_state import LedgerCheckpoint, MemberFiles
from rmqpy.why.questions.election_facts import OutsiderFacts, PeerFacts, VoterFacts
from rmqpy.why.sources.directory import StoreDirectorySource
from rmqpy.why.sources.live import BrokerSource

__all__ = ["member_of_broker", "member_of_directory"]

ROLE_ONLY: Final = (
    "a Java broker does not report term, vote, and log; its role is that of its brokerId. Run this"
    " on its directory"
)


def member_of_directory(source: StoreDirectorySource) -> VoterFacts | OutsiderFacts:
    """Return the facts of the member whose store this is."""
    directory, files = source.directory, source.files
    ledger = directory.ledger
    settings, settings_from = source.settings()
    if ledger is None:
        shown_by = f"{source.root}: no folder dledger-ID"
        return _outsider(source.name, shown_by, settings, settings_from)
    problems: list[str] = []
    state, checkpoint = HardState(), LedgerCheckpoint()
    member = MemberFiles(files, ledger.folder)
    try:
        state, checkpoint = member.load_hard_state(), member.load_checkpoint()
    except StoreError as error:
        problems.append(str(error))
    last = None
    if ledger.data:
        last = read_log_facts(files, directory, ledger.data, None)[0].last
    end_index, end_term = (last.index, last.term) if last is not None else (-1, -1)
    durable = checkpoint.durable.index if checkpoint.durable is not None else -1
    for path, found in ledger_state_problems(files, ledger, end_index, end_term):
        if durable <= end_index or path != ledger.checkpoint:
            problems.append(f"{directory.relative(path)}: {found}")
    return VoterFacts(
        name=source.name,
        self_id=ledger.self_id,
        running=find_lock_owner(directory.paths.lock) is not None,
        term=state.current_term,
        voted_for=state.voted_for or "",
        end_index=end_index,
        end_term=end_term,
        committed_index=checkpoint.committed_index,
        durable_index=durable,
        peers=settings.get("dLegerPeers", ""),
        group=settings.get("dLegerGroup", ""),
        preferred=settings.get("preferredLeaderId", ""),
        problems=tuple(problems),
        tables_missing=source.topics() is None,
    )


def member_of_broker(source: BrokerSource) -> VoterFacts | OutsiderFacts:
    """Return what a running member reports; a Java broker reports its role only."""
    settings, settings_from = source.settings()
    known = VoterFacts(
        name=source.name,
        self_id=settings.get("dLegerSelfId", ""),
        peers=settings.get("dLegerPeers", ""),
        group=settings.get("dLegerGroup", ""),
        preferred=settings.get("preferredLeaderId", ""),
    )
    answer = source.call(RequestCode.RMQPY_DLEDGER_STATUS)
    status = loads(answer.body) if answer is not None else None
    if not isinstance(status, dict) and settings.get("enableDLegerCommitLog") != "true":
        shown_by = "enableDLegerCommitLog is not set"  # leave keeps the peers
        return _outsider(source.name, shown_by, settings, settings_from)
    if not isinstance(status, dict):
        return evolve(known, role=_java_role(settings), unknown=ROLE_ONLY)
    return evolve(
        known,
        self_id=str(status["self"]),
        group=str(status["group"]),
        role=str(status["role"]),
        leader=status["leader"],
        term=status["term"],
        end_index=status["end"],
        end_term=status["end_term"],
        committed_index=status["committed"],
        fault=status.get("fault") or "",
        views=tuple(_view(each) for each in status["peers"]),
        events=tuple((each["time_ms"], each["text"]) for each in status["events"]),
    )


def _outsider(
    name: str, shown_by: str, settings: Mapping[str, str], settings_from: str
) -> OutsiderFacts:
    """Return what shows that a store or a broker is no member: ``shown_by``, or its controller."""
    if settings.get("enableControllerMode") != "true":
        return OutsiderFacts(name=name, shown_by=shown_by)
    return OutsiderFacts(
        name=name,
        shown_by=f"enableControllerMode=true ({settings_from})",
        controllers=settings.get("controllerAddr", "") or "an unknown address",
    )


def _view(peer: dict[str, Any]) -> PeerFacts:
    return PeerFacts(
        self_id=str(peer["id"]),
        state=str(peer.get("state") or ""),
        lag=int(peer.get("lag", -1)),
        reason=str(peer.get("reason") or ""),
    )


def _java_role(settings: Any) -> str:
    """Return the role that a Java broker's settings show: they change with each election."""
    if settings.get("brokerId") == "-1":
        return "CANDIDATE"  # it has followed no leader since its start
    return "LEADER" if settings.get("brokerId") == "0" else "FOLLOWER"
