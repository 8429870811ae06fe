"""The accounts of access control in the C core: a key, a hashed secret and a number for each.

An account receives its number when Python has answered a plain send or pull that it signed; its bit
is then set in the entry of that topic or reader (:mod:`.tables`). All of this is discarded when the
access files change. C accepts a request if the bit of the account that signed it is set. Python
checks all others: unsigned requests, requests from a white address or with a security token, and
those of an account beyond ``ACCOUNTS_MAX``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqpy.broker.fastpath.tables import Cdata
from rmqpy.codec.native.binding import ffi, lib
from rmqpy.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from rmqpy.broker.processors.access_control import BrokerAccessControl

ACCOUNTS_MAX: Final = 64


class FastPathAccounts:
    """The accounts that C can verify; none without access control."""

    def __init__(self, core: Cdata, access: BrokerAccessControl | None) -> None:
        self._core = core
        self._access = access
        self._accounts = ffi.new("rmq_account[]", ACCOUNTS_MAX)
        self._numbers: dict[str, int] = {}
        self._keys: list[Cdata] = []
        core.accounts = self._accounts
        core.acl_enabled = access is not None

    def clear(self) -> None:
        """Discard all accounts and everything derived from their secrets."""
        self._core.account_count = 0
        self._numbers.clear()
        self._keys.clear()
        ffi.memmove(self._accounts, bytes(ffi.sizeof(self._accounts)), ffi.sizeof(self._accounts))

    def bit(self, command: RemotingCommand) -> int:
        """Return the bit of the account that signed this command and may send it, or 0."""
        access = self._access
        key = access.account_of(command) if access is not None else None
        if access is None or key is None:
            return 0
        number = self._numbers.get(key)
        if number is None:
            number = self._add(key, access.rules.accounts[key].secret_key)
        return 1 << number if number >= 0 else 0

    def answered(self, count: int) -> None:
        """Count requests that C has accepted."""
        if self._access is not None:
            self._access.checked_elsewhere(count)

    def _add(self, key: str, secret: str) -> int:
        number = len(self._numbers)
        if number == ACCOUNTS_MAX:
            return -1
        kept = ffi.from_buffer("uint8_t[]", key.encode())
        self._keys.append(kept)
        account = self._accounts + number
        account.key = kept
        account.key_length = len(kept)
        secret_bytes = secret.encode()
        lib.rmq_set_secret(account, ffi.from_buffer("uint8_t[]", secret_bytes), len(secret_bytes))
        self._numbers[key] = number
        self._core.account_count = number + 1
        return number
