"""The answers of the node to a proposal, which the owner of the log makes before it appends.

This module is separate from the rest of the consensus core, which only members of a group need.
"""

from __future__ import annotations

from enum import Enum

from attrs import define

from rmqpy.model.ids import LedgerIndex, Term


@define(slots=True, frozen=True)
class Proposal:
    """Permission to append entries ``first_index``, ``first_index`` + 1, … in ``term``."""

    term: Term
    first_index: LedgerIndex


class ProposalRejected(Enum):
    """The reason why no entry may be appended now (the number of a DLedgerResponseCode)."""

    NOT_LEADER = 404
    DISK_ERROR = 414
    DISK_FULL = 415
    LEADER_PENDING_FULL = 503
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506
