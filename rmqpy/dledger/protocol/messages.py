"""The messages between members of a group, as values.

:mod:`rmqpy.dledger.protocol.json_bodies` encodes and decodes them, those of code 71008
:mod:`rmqpy.dledger.protocol.push_binary`.

======  ====================  =====================================  ============================
code    request               sent by → to                           response
======  ====================  =====================================  ============================
50000   MetadataRequest       client → any member                    MetadataResponse
50001   AppendEntryRequest    client → leader                        AppendEntryResponse
50002   GetEntriesRequest     client → leader                        GetEntriesResponse
51001   VoteRequest           candidate → every other member         VoteResponse
51002   HeartBeatRequest      leader → every other member            HeartBeatResponse
51004   PushEntryRequest      leader → follower                      PushEntryResponse
51005   LeadershipTransfer…   operator → leader, leader → successor  LeadershipTransferResponse
71008   PushEntryRequest      leader → follower, both rmqpy          PushEntryResponse
======  ====================  =====================================  ============================

All messages have these base fields: ``remote_id`` is the receiver, ``local_id`` the sender, and
``leader_id`` of a VoteRequest the candidate; ``code`` is 200 in requests and a
:class:`DLedgerResponseCode` in responses (an unknown number is kept unchanged). None represents an
absent field. A response that is built from the base fields of its request (votes, refusals) repeats
the ids of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import ClassVar, Final

from attrs import define

from rmqpy.dledger.entries import Buffer as Buffer
from rmqpy.dledger.entries import Entry as Entry
from rmqpy.dledger.entries import EntryRun
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import Term


class DLedgerResponseCode(IntEnum):
    """The result of a request, in the ``code`` of the body (Java DLedgerResponseCode)."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506


SUCCESS: Final = int(DLedgerResponseCode.SUCCESS)


class VoteResult(Enum):
    """The result of a vote request, as on the wire (Java VoteResponse.RESULT)."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(Enum):
    """The type of a push (Java PushEntryRequest.Type)."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


@define(slots=True, frozen=True, kw_only=True)
class DLedgerMessage:
    """The fields that every request and response has (Java RequestOrResponse)."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: int = SUCCESS
    leader_id: str | None = None
    term: Term = Term(-1)  # noqa: RUF009 (a NewType)


@define(slots=True, frozen=True, kw_only=True)
class Request(DLedgerMessage):
    """The base of all requests."""

    CODE: ClassVar[RequestCode]


@define(slots=True, frozen=True, kw_only=True)
class Response(DLedgerMessage):
    """The base of all responses."""


@define(slots=True, frozen=True, kw_only=True)
class MetadataRequest(Request):
    CODE = RequestCode.METADATA


@define(slots=True, frozen=True, kw_only=True)
class MetadataResponse(Response):
    peers: Mapping[str, str] | None = None
    """The address of each member by its id."""


@define(slots=True, frozen=True, kw_only=True)
class AppendEntryRequest(Request):
    """A client's request to append. Java's BatchAppendEntryRequest has ``batch_msgs`` instead of
    ``body``; Java's server reads only ``body``.
    """

    CODE = RequestCode.APPEND
    body: bytes | None = None
    batch_msgs: tuple[bytes, ...] | None = None

    @property
    def bodies(self) -> tuple[bytes, ...]:
        """The bodies of all entries."""
        if self.batch_msgs is not None:
            return self.batch_msgs
        return (self.body,) if self.body else ()


@define(slots=True, frozen=True, kw_only=True)
class AppendEntryResponse(Response):
    index: int = -1
    position: int = -1


@define(slots=True, frozen=True, kw_only=True)
class GetEntriesRequest(Request):
    CODE = RequestCode.GET
    begin_index: int | None = None
    max_size: int = 0
    index_list: tuple[int, ...] | None = None


@define(slots=True, frozen=True, kw_only=True)
class GetEntriesResponse(Response):
    entries: tuple[Entry, ...] = ()


@define(slots=True, frozen=True, kw_only=True)
class VoteRequest(Request):
    CODE = RequestCode.VOTE
    ledger_end_index: int = -1
    ledger_end_term: int = -1


@define(slots=True, frozen=True, kw_only=True)
class VoteResponse(Response):
    result: VoteResult = VoteResult.UNKNOWN


@define(slots=True, frozen=True, kw_only=True)
class HeartBeatRequest(Request):
    CODE = RequestCode.HEART_BEAT_DLEDGER


@define(slots=True, frozen=True, kw_only=True)
class HeartBeatResponse(Response):
    pass


@define(slots=True, frozen=True, kw_only=True)
class PushEntryRequest(Request):
    """A leader's push. It has one entry for COMPARE, TRUNCATE and a single APPEND, none for COMMIT,
    and any number of consecutive entries with ``batch``.
    """

    CODE = RequestCode.PUSH
    type: PushType = PushType.APPEND
    commit_index: int = -1
    entries: Sequence[Entry] = ()
    batch: bool = False

    @property
    def first_index(self) -> int:
        entries = self.entries
        if not entries:
            return -1
        return entries.first_index if isinstance(entries, EntryRun) else entries[0].index

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1 if self.entries else -1


@define(slots=True, frozen=True, kw_only=True)
class PushEntryResponse(Response):
    """A follower's answer to a push, with the ``begin_index`` and ``end_index`` of its log.
    ``count`` is 0 in answers of old members.
    """

    index: int | None = None
    count: int = 0
    begin_index: int = 0
    end_index: int = 0


@define(slots=True, frozen=True, kw_only=True)
class LeadershipTransferRequest(Request):
    """A request that ``transferee_id`` take over leadership from ``transfer_id`` once its ledger
    reaches ``take_leadership_ledger_index``.
    """

    CODE = RequestCode.LEADERSHIP_TRANSFER
    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: int = -1


@define(slots=True, frozen=True, kw_only=True)
class LeadershipTransferResponse(Response):
    pass


RESPONSES: Final[Mapping[type[Request], type[Response]]] = {
    MetadataRequest: MetadataResponse,
    AppendEntryRequest: AppendEntryResponse,
    GetEntriesRequest: GetEntriesResponse,
    VoteRequest: VoteResponse,
    HeartBeatRequest: HeartBeatResponse,
    PushEntryRequest: PushEntryResponse,
    LeadershipTransferRequest: LeadershipTransferResponse,
}
"""The response type of each request type."""

REQUESTS: Final[Mapping[int, type[Request]]] = {
    **{int(kind.CODE): kind for kind in RESPONSES},
    int(RequestCode.RMQPY_PUSH_RUN): PushEntryRequest,
}
"""The request types by code."""
