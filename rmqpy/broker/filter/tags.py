"""Tag expressions of subscriptions, and the matcher that the store calls.

``*``, an empty and an absent expression select everything; others are tags separated by ``||``. The
store compares the hash of a message's tags (Java ``String.hashCode``); the consumer compares the
tags themselves.
"""

from __future__ import annotations

from typing import Final

from rmqpy.broker.base.store_api import Matcher
from rmqpy.codec.hashes import java_string_hash
from rmqpy.remoting.bodies import EXPRESSION_TAG, SubscriptionData

EVERYTHING: Final = "*"
TAG_SEPARATOR: Final = "||"
TAGS_LIMIT: Final = 1024


class FilterSyntaxError(ValueError):
    """Raised for a text that is not an SQL92 expression, or for one that can never be evaluated."""


def is_tag_expression(expression_type: str | None) -> bool:
    return not expression_type or expression_type == EXPRESSION_TAG


def tags_of(expression: str | None) -> list[str]:
    """Return the tags that ``expression`` names, or an empty list if it selects everything. Raises
    ValueError if it names no tag, or more than ``TAGS_LIMIT``.
    """
    if not expression or expression == EVERYTHING:
        return []
    tags = [tag.strip() for tag in expression.split(TAG_SEPARATOR)]
    tags = [tag for tag in tags if tag]
    if not tags:
        raise ValueError(f"the expression {expression!r} names no tag")
    if len(tags) > TAGS_LIMIT:
        raise ValueError(f"the expression has {len(tags)} tags, at most {TAGS_LIMIT} are allowed")
    return tags


def matcher_of_expression(expression: str | None) -> Matcher | None:
    """Return the matcher of a tag expression, or None if it selects everything."""
    tags = tags_of(expression)
    return frozenset(map(java_string_hash, tags)).__contains__ if tags else None


def matcher_of(subscription: SubscriptionData) -> Matcher | None:
    """Return the matcher of a subscription that a heartbeat registered."""
    if subscription.sub_string == EVERYTHING or subscription.class_filter_mode:
        return None
    return frozenset(subscription.code_set).__contains__
