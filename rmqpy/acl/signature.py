"""Authentication and authorization of requests: the signatures of access control 1.0 and the order
of the checks.

The signature is the standard Base64 form of HMAC-SHA1 over the values of all ext fields, sorted by
key in Java's string order, and the body. A signer first adds AccessKey (and SecurityToken). The
field Signature is excluded, and so is ``_UNIQUE_KEY_QUERY``, which Java's clients add after they
have signed.

======  ===================================  =====================================================
step    when                                 then
======  ===================================  =====================================================
1       peer is in the global white list     allowed, unless the request concerns secrets
2       no AccessKey, or an unknown one      refused
3       peer is the account's white address  no signature needed; all topics and groups are allowed,
                                             administration only to an administrator
4       the signature does not match         refused
5       the account lacks the level          refused
6       a right is missing                   refused
======  ===================================  =====================================================

Differences from Java 4.9.7: a request code without a declared demand is refused (Java allows it).
White addresses allow no access to accounts, and no administration to an account that is not an
administrator (Java allows everything).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

from attrs import define, evolve, field

from rmqpy.acl.address_patterns import any_matches
from rmqpy.acl.rules import PUB, AccessRules, Account, RequiredPermission
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.names import TRACE_TOPIC
from rmqpy.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

ORDERS_KEPT: Final = 256

REFUSED: Final = "org.apache.rocketmq.acl.common.AclException: "
"""The start of Java's refusals, which scripts search for."""


@define(slots=True, frozen=True)
class Credentials:
    """The credentials with which a client signs its requests."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signed(self, request: RemotingCommand) -> RemotingCommand:
        """Return a copy of ``request`` with the fields that authenticate its sender."""
        fields = dict(request.ext_fields)
        fields.pop(SIGNATURE, None)
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature(self.secret_key, fields, request.body)
        return evolve(request, ext_fields=fields)


def signature(secret_key: str, fields: Mapping[str, str], body: bytes) -> str:
    """Return the value of the field Signature for a request with these fields and body."""
    values = [fields[key] for key in _signed_order(tuple(fields))]
    content = "".join(values).encode("utf-8", "replace") + body
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def verify_signature(account: Account, request: RemotingCommand) -> bool:
    """Return whether ``request`` is signed with the secret of ``account``."""
    expected = signature(account.secret_key, request.ext_fields, request.body)
    return hmac.compare_digest(
        expected, request.ext_fields.get(SIGNATURE, "").encode("ascii", "replace").decode()
    )


class AccessLevel(Enum):
    """The level that the sender of a request code needs."""

    ANYONE = "anyone"
    """No account is needed."""
    ACCOUNT = "account"
    """An account with rights on the resources is needed."""
    ADMINISTRATOR = "administrator"
    SECRETS = "administrator, signed"
    """A signed request of an administrator is needed; a white address does not replace the
    signature.
    """


Resources = Callable[[RemotingCommand], Sequence[RequiredPermission]]
"""A function that returns the permissions that a request needs. It raises RequestRejectedError if
the request is unreadable.
"""


def _nothing(_request: RemotingCommand) -> Sequence[RequiredPermission]:
    return ()


@define(slots=True, frozen=True)
class AccessDemand:
    """The level and the permissions that a request code demands."""

    level: AccessLevel
    resources: Resources = _nothing


@define(slots=True, eq=False, repr=False)
class AccessChecker:
    """The check of requests: ``declared`` contains the demand of each request code, ``rules`` the
    accounts. The rules may be replaced at any time.
    """

    declared: Mapping[int, AccessDemand]
    rules: AccessRules = field(factory=AccessRules)
    refused: int = 0
    allowed: int = 0

    def use(self, rules: AccessRules) -> None:
        """Replace the rules."""
        self.rules = rules

    def count_allowed(self, count: int) -> None:
        """Count requests that the fast path has checked and allowed."""
        self.allowed += count

    def check(self, address: str, request: RemotingCommand) -> None:
        """Raise RequestRejectedError unless the peer at ``address`` may send ``request``."""
        try:
            self._check(address, request)
        except RequestRejectedError:
            self.refused += 1
            raise
        self.allowed += 1

    def has_rights(self, access_key: str, request: RemotingCommand) -> bool:
        """Return whether the account ``access_key`` has the rights for the topics and groups of
        ``request``. The signature is not checked.
        """
        declared = self.declared.get(request.code)
        account = self.rules.accounts.get(access_key)
        if declared is None or declared.level is not AccessLevel.ACCOUNT or account is None:
            return False
        try:
            return account.lacks(_needs(declared, request)) is None
        except RequestRejectedError:
            return False

    def _check(self, address: str, request: RemotingCommand) -> None:
        declared = self.declared.get(request.code)
        if declared is None:
            raise _refusal(f"request code {request.code} is not permitted")
        if declared.level is AccessLevel.ANYONE:
            return
        secrets = declared.level is AccessLevel.SECRETS
        if not secrets and any_matches(self.rules.white_addresses, address):
            return
        account = self._account(request)
        is_white_address = account.white_address.matches(address)
        if (secrets or not is_white_address) and not verify_signature(account, request):
            raise _refusal(f"Check signature failed for accessKey={account.access_key}")
        if declared.level is not AccessLevel.ACCOUNT and not account.admin:
            raise _refusal(
                f"Need admin permission for request code={request.code}, "
                f"but accessKey={account.access_key} is not"
            )
        if is_white_address:
            return
        lacking = account.lacks(_needs(declared, request))
        if lacking is not None:
            raise _refusal(f"No permission for {lacking}, accessKey={account.access_key}")

    def _account(self, request: RemotingCommand) -> Account:
        key = request.ext_fields.get(ACCESS_KEY)
        if not key:
            raise _refusal("No accessKey is configured")
        account = self.rules.accounts.get(key)
        if account is None:
            raise _refusal(f"No acl config for {key[:64]}")
        return account


_TRACE: Final = RequiredPermission(TRACE_TOPIC, PUB)
"""The permission that every account has, as in Java: clients write their traces to this topic."""


def _needs(declared: AccessDemand, request: RemotingCommand) -> Sequence[RequiredPermission]:
    return [need for need in declared.resources(request) if need != _TRACE]


def _refusal(text: str) -> RequestRejectedError:
    return RequestRejectedError(ResponseCode.SYSTEM_ERROR, REFUSED + text)


@lru_cache(maxsize=ORDERS_KEPT)
def _signed_order(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys whose values are signed, in order. Results are cached, because requests have
    few different sets of keys.
    """
    signed = (key for key in keys if key not in (SIGNATURE, UNIQUE_KEY_QUERY))
    return tuple(sorted(signed, key=_java_order))


def _java_order(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")
