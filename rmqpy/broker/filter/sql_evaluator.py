"""Evaluation of the parts of an SQL92 expression, given the properties of a message.

The parser (:mod:`.sql_parser`, whose table contains the rules) combines nodes; each node holds a
closure over its parts, so that an expression is compiled once and evaluated often, and the same as
code for C (:mod:`.sql_program`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define

from rmqpy.broker.filter import sql_program
from rmqpy.broker.filter.sql_program import Code, Long, SqlOp, SqlStep, Value
from rmqpy.broker.filter.tags import FilterSyntaxError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class FilterEvaluationError(ValueError):
    """Raised if a message has values to which the expression cannot be applied."""


Evaluate = Callable[[Mapping[str, str]], Value]


@define(slots=True, frozen=True)
class SqlNode:
    """A part of an expression. ``is_boolean`` means that its value is true, false or unknown."""

    evaluate: Evaluate
    code: Code
    is_boolean: bool = False
    is_constant: bool = False
    constant: Value = None
    property: str | None = None


def constant(value: Value, is_boolean: bool = False) -> SqlNode:
    code = (SqlStep(SqlOp.CONSTANT, value),)
    return SqlNode(lambda _properties: value, code, is_boolean, is_constant=True, constant=value)


def property_(name: str) -> SqlNode:
    code = (SqlStep(SqlOp.PROPERTY, name),)
    return SqlNode(lambda properties: properties.get(name), code, property=name)


def decimal(text: str) -> int:
    value = int(text.rstrip("lL"))
    if value > LONG_MAX:
        raise FilterSyntaxError(f"{text} is greater than {LONG_MAX}")
    return value if value <= INT_MAX else Long(value)


def double(text: str) -> float:
    value = float(text)
    if math.isinf(value) or value == 0.0:
        raise FilterSyntaxError(f"{text} is not a double above 0")
    return value


def truth_of(node: SqlNode) -> SqlNode:
    """Return ``node`` as a truth value. A property is not a truth value, whatever its text."""
    if node.is_boolean:
        return node
    if node.property is None:
        raise FilterSyntaxError("Expression will not result in a boolean value")
    inner = node.evaluate
    return SqlNode(
        lambda properties: None if inner(properties) is None else False,
        (*node.code, SqlStep(SqlOp.TRUTH)),
        is_boolean=True,
    )


def not_(node: SqlNode) -> SqlNode:
    inner = node.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise FilterEvaluationError("NOT requires a truth value")
        return not value

    return SqlNode(evaluate, (*node.code, SqlStep(SqlOp.NOT)), is_boolean=True)


def negative(node: SqlNode) -> SqlNode:
    inner = node.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        if isinstance(value, bool | str) or value is None:
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return SqlNode(evaluate, (*node.code, SqlStep(SqlOp.NEGATE)))


def and_or(nodes: Sequence[SqlNode], decisive: bool) -> SqlNode:
    """Return AND (decided by False) or OR (decided by True) of the parts, in three-valued logic."""
    nodes = [truth_of(node) for node in nodes]
    parts = [node.evaluate for node in nodes]

    def evaluate(properties: Mapping[str, str]) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is None:
                unknown = True
            elif value is decisive:
                return decisive
        return None if unknown else not decisive

    code = sql_program.combine([node.code for node in nodes], decisive)
    return SqlNode(evaluate, code, is_boolean=True)


def membership(node: SqlNode, texts: frozenset[str]) -> SqlNode:
    value_of = node.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = value_of(properties)
        return None if value is None else value in texts

    return SqlNode(evaluate, (*node.code, SqlStep(SqlOp.IN, tuple(sorted(texts)))), is_boolean=True)


def is_null(node: SqlNode) -> SqlNode:
    """Return the test for null: true for null, false for any other value."""
    inner = node.evaluate
    code = (*node.code, SqlStep(SqlOp.IS_NULL))
    return SqlNode(lambda properties: inner(properties) is None, code, is_boolean=True)


def equal(left: SqlNode, right: SqlNode) -> SqlNode:
    for node in (left, right):
        if node.is_constant and node.constant is None:
            raise FilterSyntaxError("NULL cannot be compared: use IS NULL")
    both_constant = left.is_constant and right.is_constant
    if both_constant and left.is_boolean and not right.is_boolean:
        raise FilterSyntaxError("a truth value cannot be compared with something else")
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left_of(properties), right_of(properties)
        if one is None or other is None:
            if one is None and other is None:
                return True
            return None if one is None else False
        return _compare(one, other) == 0

    return SqlNode(evaluate, (*left.code, *right.code, SqlStep(SqlOp.EQUAL)), is_boolean=True)


ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}


def ordered(left: SqlNode, sign: str, right: SqlNode) -> SqlNode:
    _check_numbers(sign, left, right)
    left_of, right_of, compares = left.evaluate, right.evaluate, ORDERS[sign]

    def evaluate(properties: Mapping[str, str]) -> Value:
        one = left_of(properties)
        return None if one is None else _order(one, right_of(properties), compares)

    return SqlNode(evaluate, sql_program.order(left.code, sign, right.code), is_boolean=True)


def between(value: SqlNode, low: SqlNode, high: SqlNode, negated: bool) -> SqlNode:
    """Return ``value >= low AND value <= high``, or ``value < low OR value > high`` if negated.

    Unlike in Java, ``value`` is evaluated once: otherwise the time would double with each BETWEEN
    in the value of another one.
    """
    signs = ("<", ">") if negated else (">=", "<=")
    if not negated:
        check_range(low, high)
    _check_numbers(signs[0], value, low)
    _check_numbers(signs[1], value, high)
    value_of, low_of, high_of = value.evaluate, low.evaluate, high.evaluate
    compares_low, compares_high = ORDERS[signs[0]], ORDERS[signs[1]]

    def evaluate(properties: Mapping[str, str]) -> Value:
        found = value_of(properties)
        if found is None:
            return None
        first = _order(found, low_of(properties), compares_low)
        if first is negated:
            return negated
        second = _order(found, high_of(properties), compares_high)
        if second is negated:
            return negated
        return None if first is None or second is None else not negated

    code = sql_program.between(value.code, low.code, high.code, signs, negated)
    return SqlNode(evaluate, code, is_boolean=True)


def _check_numbers(sign: str, *nodes: SqlNode) -> None:
    for node in nodes:
        is_number = isinstance(node.constant, int | float) and not node.is_boolean
        if node.is_boolean or (node.is_constant and not is_number):
            raise FilterSyntaxError(f"only numbers can be compared with {sign}")


def _order(
    one: str | int | float | bool, other: Value, compares: Callable[[int], bool]
) -> bool | None:
    if other is None:
        return None
    if isinstance(one, str) and isinstance(other, str):
        return compares(_compare(_to_double(one), _to_double(other)))
    return compares(_compare(one, other))


def check_range(low: SqlNode, high: SqlNode) -> None:
    if not (low.is_constant and high.is_constant):
        return
    if low.constant is None or high.constant is None:
        raise FilterSyntaxError("Illegal values of between, values can not be null!")
    try:
        is_reversed = _compare(high.constant, low.constant) < 0
    except FilterEvaluationError as fault:
        raise FilterSyntaxError(str(fault)) from fault
    if is_reversed:
        raise FilterSyntaxError(
            f"Illegal values of between, left value({low.constant}) must less than or equal to "
            f"right value({high.constant})"
        )


# ----------------------------------------------------------------------------------------- values


def _compare(one: str | int | float | bool, other: str | int | float | bool) -> int:
    """Return the sign of the difference, or -1 if there is none. A text takes the type of the other
    side.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return _compare_truth(one, other)
    if isinstance(one, str) and isinstance(other, str):
        return (one > other) - (one < other)
    if isinstance(one, str):
        assert not isinstance(other, str)
        return _compare_numbers(_converted(one, other), other)
    return _compare_numbers(one, _converted(other, one) if isinstance(other, str) else other)


def _compare_numbers(one: int | float, other: int | float) -> int:
    if isinstance(one, float) or isinstance(other, float):
        return _compare_doubles(float(one), float(other))
    return (one > other) - (one < other)


def _compare_truth(one: str | int | float | bool, other: str | int | float | bool) -> int:
    if isinstance(one, bool) and isinstance(other, bool):
        return one - other
    if isinstance(one, str):
        return (one.lower() == "true") - int(other)
    if isinstance(other, str):
        raise FilterEvaluationError("a truth value cannot be compared with a text on its right")
    return -1


def _compare_doubles(one: float, other: float) -> int:
    """Compare as Double.compareTo does: NaN equals itself and is the greatest, -0.0 is less than
    0.0.
    """
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) - math.isnan(other)
    if one == other:
        return int(math.copysign(1, one) > math.copysign(1, other)) - int(
            math.copysign(1, one) < math.copysign(1, other)
        )
    return (one > other) - (one < other)


def _converted(text: str, like: int | float) -> int | float:
    if isinstance(like, float):
        return _to_double(text)
    limit = LONG_MAX if isinstance(like, Long) else INT_MAX
    if _INTEGER.fullmatch(text) is None or not -limit - 1 <= int(text) <= limit:
        raise FilterEvaluationError(f"{text[:64]!r} is not an integer up to {limit}")
    return int(text)


_INTEGER: Final = re.compile(r"[+-]?\d{1,20}")
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEX_DOUBLE: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))


def _to_double(text: str) -> float:
    """Convert a text as Double.valueOf does."""
    bare = text.strip(_JAVA_BLANKS)
    if _DOUBLE.fullmatch(bare) is not None:
        return float(bare if bare.endswith("y") else bare.rstrip("fFdD"))
    if _HEX_DOUBLE.fullmatch(bare) is not None:
        try:
            return float.fromhex(bare.rstrip("fFdD"))
        except OverflowError:
            return math.copysign(math.inf, -1 if bare.startswith("-") else 1)
    raise FilterEvaluationError(f"{text[:64]!r} is not a number")
