"""Browser sessions, in memory: whether the token was given, and the account that may write.

Invariants: at most ``SESSIONS_MAX`` sessions, the oldest of which goes first; an id cannot be
guessed; a session without a token or an account is not kept, except for its form token.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.model.clock import Clock

__all__ = ["COOKIE", "BrowserSession", "SessionTable"]

COOKIE: Final = "rmqpy-console"
SESSIONS_MAX: Final = 256
IDLE_MS: Final = 8 * 3_600_000


@define(slots=True, eq=False)
class BrowserSession:
    """One browser. ``account`` is the name of the account that has logged in, "" without one."""

    id: str
    csrf: str = field(repr=False)
    seen_ms: int
    has_token: bool = False
    account: str = ""
    credentials: Credentials | None = field(default=None, repr=False)


@define(slots=True)
class SessionTable:
    """The sessions by id, least recently used first."""

    clock: Clock
    random: Callable[[], str] = secrets.token_urlsafe
    _sessions: OrderedDict[str, BrowserSession] = field(factory=OrderedDict)

    def of(self, session_id: str) -> BrowserSession:
        """Return the session of a cookie, or a new one that :meth:`keep` may keep."""
        now_ms = self.clock.now_ms()
        found = self._sessions.get(session_id)
        if found is None or now_ms - found.seen_ms > IDLE_MS:
            self._sessions.pop(session_id, None)
            return BrowserSession(self.random(), self.random(), now_ms)
        found.seen_ms = now_ms
        self._sessions.move_to_end(session_id)
        return found

    def keep(self, session: BrowserSession) -> None:
        """Remember a session. Sessions with a token or an account stay longer than others."""
        self._sessions[session.id] = session
        while len(self._sessions) > SESSIONS_MAX:
            plain = (
                key
                for key, each in self._sessions.items()
                if not each.has_token and not each.account
            )
            del self._sessions[next(plain, next(iter(self._sessions)))]

    def renewed(self, session: BrowserSession) -> BrowserSession:
        """Return the session under a new id, after a login; the old id leads nowhere."""
        self._sessions.pop(session.id, None)
        session.id, session.csrf = self.random(), self.random()
        self.keep(session)
        return session

    def __len__(self) -> int:
        return len(self._sessions)
