"""Which accounts of access control may not consume a topic as a group, and for lack of which right.

Nothing says which account the members of a group sign with if none of them is online, so an account
that lacks a right is a possible cause, unless all of them do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqpy.acl.rules import DENY, PUB, SUB, Account, RequiredPermission, retry_resource
from rmqpy.model.text import count_text
from rmqpy.why.answer import Cause, possible, proven
from rmqpy.why.questions.message_facts import ConsumerGroupFacts, NoMessageFacts

__all__ = ["access_causes"]

ACCOUNTS_NAMED = 5
_RIGHT_TEXTS = {DENY: "DENY", PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}


def access_causes(facts: NoMessageFacts, group: ConsumerGroupFacts) -> Iterator[Cause]:
    """Yield the accounts that access control refuses; for a group that is not seen online."""
    if facts.settings.get("aclEnable", "false") != "true":
        return
    needs = [RequiredPermission(retry_resource(group.name), SUB)]
    if facts.topic is not None:
        needs.append(RequiredPermission(facts.topic.name, SUB))
    wanted = " and ".join(str(each).replace(":", " ", 1) for each in needs)
    access = facts.access
    if access is None or not access.accounts:
        yield possible(
            f"access control is on: a consumer whose account lacks SUB on {wanted} is refused,"
            " which its log shows as an AclException",
            facts.setting("aclEnable"),
            f"conf/plain_acl.yml and conf/acl/*.yml have the accounts; group {group.name} needs an"
            " entry in groupPerms, or defaultGroupPerm=SUB",
            next=("rmqpy admin getAclConfig -b BROKER shows the rights of all accounts",),
        )
        return
    refused = [(each, why) for each in access.accounts if (why := _lacking(each.account, needs))]
    names = [each.account.access_key for each, _ in refused]
    allowed = [
        each.account.access_key for each in access.accounts if each.account.access_key not in names
    ]
    evidence = [
        f"account {each.account.access_key} ({each.place}): {'; '.join(why)}"
        for each, why in refused[:ACCOUNTS_NAMED]
    ]
    if len(refused) > ACCOUNTS_NAMED:
        evidence.append(f"and {count_text(len(refused) - ACCOUNTS_NAMED, 'more account')}")
    if allowed:
        evidence.append(f"these accounts may: {_listed(allowed)}")
    next_steps = (
        f"add SUB on {wanted} to groupPerms and topicPerms of the account that the consumer signs"
        " with; the broker reads its access files again within seconds",
    )
    if not refused:
        yield possible(
            "access control is on: a consumer that does not sign, or with another account or secret"
            " than those of the broker, is refused, which its log shows as an AclException",
            facts.setting("aclEnable"),
            *evidence,
            next=("compare accessKey and secretKey of the consumer with the access files",),
        )
    elif allowed or access.has_white_addresses:
        yield possible(
            f"access control refuses a consumer that signs as {_listed(names)}",
            *evidence,
            next=next_steps,
        )
    else:
        yield proven(
            f"access control refuses every consumer: none of its"
            f" {count_text(len(refused), 'account')} has SUB on {wanted}",
            *evidence,
            next=next_steps,
        )


def _lacking(account: Account, needs: Sequence[RequiredPermission]) -> list[str]:
    """Return what of its entries refuses the account, one text for each right that it lacks."""
    found = []
    for need in needs:
        if account.lacks([need]) is None:
            continue
        kind = "group" if need.is_group else "topic"
        name = str(need).partition(":")[2]
        given = (account.rights or {}).get(need.resource)
        default = account.default_group_right if need.is_group else account.default_topic_right
        found.append(
            f"{kind}Perms has {name}={_RIGHT_TEXTS.get(given, given)}"
            if given is not None
            else f"no entry for {kind} {name} in {kind}Perms, and"
            f" default{kind.capitalize()}Perm={_RIGHT_TEXTS.get(default, default)}"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - ACCOUNTS_NAMED
    text = ", ".join(names[:ACCOUNTS_NAMED])
    return f"{text}, and {more} more" if more > 0 else text
