"""SQL92 expressions over message properties, with the results of Java's filter module.

::

    or          := and {OR and}
    and         := equality {AND equality}
    equality    := comparison {(= | <>) comparison | IS NULL | IS NOT NULL}
    comparison  := unary {(> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                          | [NOT] IN ('text' {, 'text'})}
    unary       := + unary | - unary | NOT unary | primary
    primary     := literal | property | ( or )

Words of the grammar in any case; ``--`` and ``/* */`` comment. What follows a complete expression
is ignored, as in Java. Values are texts (all properties), 32 and 64 bit integers, doubles, truth
values and null (an absent property).

====================  =============================================================
=, <>                 a text is converted to the type of the number beside it; null
                      on the left is unknown, only on the right it is false
>, >=, <, <=          the same; two texts are compared as doubles; null is unknown
IN                    texts only; null is unknown
AND, OR, NOT          three-valued
====================  =============================================================

A text that cannot be converted makes the whole evaluation fail: the message is not matched. An
expression matches where it is true; unknown is not true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from attrs import define

EXPRESSION_LENGTH_MAX: Final = 16 * 1024
NESTING_MAX: Final = 50
"""Parentheses, signs and NOTs inside each other, and comparisons of comparisons."""

RULES_A_LEVEL: Final = 3
"""Of the grammar's rules that count their depth, those that a parenthesis passes."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ExpressionFault(ValueError):
    """The text is no expression, or one that can never be evaluated."""


class EvaluationFault(ValueError):
    """A message has values that the expression cannot be applied to."""


class Long(int):
    """A 64 bit integer; a plain int has 32."""


Value = str | int | float | bool | None
Evaluate = Callable[[Mapping[str, str]], Value]


@define(slots=True, frozen=True)
class Expression:
    """A compiled expression."""

    text: str
    evaluate: Evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether it is true of these properties; what cannot be evaluated does not match."""
        try:
            return self.evaluate(properties) is True
        except EvaluationFault:
            return False


def compile_expression(text: str) -> Expression:
    """Raises ExpressionFault with the reason."""
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise ExpressionFault(f"{len(text)} characters, more than {EXPRESSION_LENGTH_MAX}")
    return Expression(text, _boolean(_Parser(text).parse()).evaluate)


# ----------------------------------------------------------------------------------------- tokens

_TOKENS: Final = re.compile(
    r"""(?P<space>[ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/)
      | (?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                | [0-9]+[eE][+-]?[0-9]+)
      | (?P<decimal>0|[1-9][0-9]*[lL]?)
      | (?P<string>'(?:''|[^'])*')
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<sign><>|>=|<=|[=><(),+-])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"}
)
_END: Final = "end"


class _Token(NamedTuple):
    kind: str
    """``sign`` and ``word`` of the grammar stand for themselves: their kind is their text."""
    text: str
    place: int


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        found = _TOKENS.match(text, place)
        if found is None:
            raise ExpressionFault(f"{text[place]!r} at character {place} cannot be read")
        kind, content = found.lastgroup or "", found.group()
        if kind == "sign" or (kind == "word" and content.upper() in _WORDS):
            kind = content.upper()
        if kind != "space":
            yield _Token(kind, content, place)
        place = found.end()
    yield _Token(_END, "", place)


# ------------------------------------------------------------------------------------------ nodes


@define(slots=True, frozen=True)
class _Node:
    """A part of an expression. ``is_boolean`` says that its value is true, false or unknown."""

    evaluate: Evaluate
    is_boolean: bool = False
    is_constant: bool = False
    constant: Value = None
    property: str | None = None


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._token = next(self._rest)
        self._depth = 0

    def parse(self) -> _Node:
        return self._or()

    def _or(self) -> _Node:
        return self._chain(self._and, "OR", True)

    def _and(self) -> _Node:
        return self._chain(self._equality, "AND", False)

    def _chain(self, part: Callable[[], _Node], word: str, decisive: bool) -> _Node:
        parts = [part()]
        while self._token.kind == word:
            self._next()
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        evaluations = tuple(_boolean(node).evaluate for node in parts)
        return _Node(_junction(evaluations, decisive), is_boolean=True)

    def _equality(self) -> _Node:
        self._enter()
        left = self._comparison()
        links = 0
        while self._token.kind in ("=", "<>", "IS"):
            links = self._one_more(links)
            sign = self._take().kind
            if sign == "IS":
                negated = self._token.kind == "NOT"
                if negated:
                    self._next()
                self._expect("NULL")
                left = _is_null(left)
                left = _not(left) if negated else left
            else:
                left = _equal(left, self._comparison())
                left = _not(left) if sign == "<>" else left
        self._leave()
        return left

    def _comparison(self) -> _Node:
        self._enter()
        left = self._unary()
        links = 0
        while True:
            kind = self._token.kind
            negated = kind == "NOT"
            if negated:
                self._next()
                kind = self._token.kind
                if kind not in ("BETWEEN", "IN"):
                    raise self._unexpected()
            if kind in _ORDERS:
                self._next()
                left = _ordered(left, kind, self._unary())
            elif kind == "BETWEEN":
                left = self._between(left, negated)
            elif kind == "IN":
                left = self._in(left, negated)
            else:
                break
            links = self._one_more(links)
        self._leave()
        return left

    def _between(self, value: _Node, negated: bool) -> _Node:
        self._next()
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if negated:
            parts = (_ordered(value, "<", low), _ordered(value, ">", high))
        else:
            _check_range(low, high)
            parts = (_ordered(value, ">=", low), _ordered(value, "<=", high))
        evaluations = tuple(node.evaluate for node in parts)
        return _Node(_junction(evaluations, decisive=negated), is_boolean=True)

    def _in(self, left: _Node, negated: bool) -> _Node:
        self._next()
        self._expect("(")
        texts = {self._string()}
        while self._token.kind == ",":
            self._next()
            texts.add(self._string())
        self._expect(")")
        if left.property is None:
            raise ExpressionFault("IN needs a property on its left")
        return _Node(_membership(left.evaluate, frozenset(texts), negated), is_boolean=True)

    def _unary(self) -> _Node:
        self._enter()
        kind = self._token.kind
        if kind == "+":
            self._next()
            node = self._unary()
        elif kind == "-":
            self._next()
            node = _negative(self._unary())
        elif kind == "NOT":
            self._next()
            node = _not(_boolean(self._unary()))
        else:
            node = self._primary()
        self._leave()
        return node

    def _primary(self) -> _Node:
        kind = self._token.kind
        if kind == "(":
            self._next()
            node = self._or()
            self._expect(")")
            return node
        if kind == "word":
            name = self._take().text
            return _Node(lambda properties: properties.get(name), property=name)
        if kind == "string":
            return _constant(self._string())
        if kind == "decimal":
            return _constant(_decimal(self._take().text))
        if kind == "float":
            return _constant(_float(self._take().text))
        if kind in ("TRUE", "FALSE", "NULL"):
            self._next()
            value = {"TRUE": True, "FALSE": False, "NULL": None}[kind]
            return _constant(value, is_boolean=True)
        raise self._unexpected()

    def _string(self) -> str:
        return self._expect("string").text[1:-1].replace("''", "'")

    def _expect(self, kind: str) -> _Token:
        if self._token.kind != kind:
            raise self._unexpected()
        return self._take()

    def _take(self) -> _Token:
        token = self._token
        self._next()
        return token

    def _next(self) -> None:
        self._token = next(self._rest, self._token)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > RULES_A_LEVEL * NESTING_MAX:
            raise ExpressionFault(f"nested more than {NESTING_MAX} times")

    def _leave(self) -> None:
        self._depth -= 1

    @staticmethod
    def _one_more(links: int) -> int:
        """A comparison of a comparison of ..."""
        if links == NESTING_MAX:
            raise ExpressionFault(f"a chain of more than {NESTING_MAX} comparisons")
        return links + 1

    def _unexpected(self) -> ExpressionFault:
        what = repr(self._token.text) if self._token.kind != _END else "the end"
        return ExpressionFault(f"{what} at character {self._token.place} was not expected")


# ----------------------------------------------------------------------------------- constructors


def _constant(value: Value, is_boolean: bool = False) -> _Node:
    return _Node(lambda _properties: value, is_boolean, is_constant=True, constant=value)


def _decimal(text: str) -> int:
    value = int(text.rstrip("lL"))
    if value > LONG_MAX:
        raise ExpressionFault(f"{text} is greater than {LONG_MAX}")
    return value if value <= INT_MAX else Long(value)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value) or value == 0.0:
        raise ExpressionFault(f"{text} is no double above 0")
    return value


def _boolean(node: _Node) -> _Node:
    """``node`` as a truth value: a property is none, whatever its text."""
    if node.is_boolean:
        return node
    if node.property is None:
        raise ExpressionFault("Expression will not result in a boolean value")
    inner = node.evaluate
    return _Node(lambda properties: None if inner(properties) is None else False, True)


def _not(node: _Node) -> _Node:
    inner = node.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise EvaluationFault("NOT of no truth value")
        return not value

    return _Node(evaluate, is_boolean=True)


def _negative(node: _Node) -> _Node:
    inner = node.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        value = inner(properties)
        if isinstance(value, bool | str) or value is None:
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return _Node(evaluate)


def _junction(parts: tuple[Evaluate, ...], decisive: bool) -> Evaluate:
    """AND (False decides) or OR (True decides), three-valued."""

    def evaluate(properties: Mapping[str, str]) -> Value:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is None:
                unknown = True
            elif value is decisive:
                return decisive
        return None if unknown else not decisive

    return evaluate


def _membership(value_of: Evaluate, texts: frozenset[str], negated: bool) -> Evaluate:
    def evaluate(properties: Mapping[str, str]) -> Value:
        value = value_of(properties)
        return None if value is None else (value in texts) is not negated

    return evaluate


def _is_null(node: _Node) -> _Node:
    """Null alone is null; of a known value it is false."""
    inner = node.evaluate
    return _Node(lambda properties: inner(properties) is None, is_boolean=True)


def _equal(left: _Node, right: _Node) -> _Node:
    for node in (left, right):
        if node.is_constant and node.constant is None:
            raise ExpressionFault("NULL cannot be compared: use IS NULL")
    both_constant = left.is_constant and right.is_constant
    if both_constant and left.is_boolean and not right.is_boolean:
        raise ExpressionFault("a truth value cannot be compared with something else")
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: Mapping[str, str]) -> Value:
        one, other = left_of(properties), right_of(properties)
        if one is None or other is None:
            if one is None and other is None:
                return True
            return None if one is None else False
        return _compare(one, other) == 0

    return _Node(evaluate, is_boolean=True)


_ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}


def _ordered(left: _Node, sign: str, right: _Node) -> _Node:
    for node in (left, right):
        is_number = isinstance(node.constant, int | float) and not node.is_boolean
        if node.is_boolean or (node.is_constant and not is_number):
            raise ExpressionFault(f"only numbers can be compared by {sign}")
    left_of, right_of, holds = left.evaluate, right.evaluate, _ORDERS[sign]

    def evaluate(properties: Mapping[str, str]) -> Value:
        one = left_of(properties)
        if one is None:
            return None
        other = right_of(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return holds(_compare(_to_double(one), _to_double(other)))
        return holds(_compare(one, other))

    return _Node(evaluate, is_boolean=True)


def _check_range(low: _Node, high: _Node) -> None:
    if not (low.is_constant and high.is_constant):
        return
    if low.constant is None or high.constant is None:
        raise ExpressionFault("Illegal values of between, values can not be null!")
    try:
        upside_down = _compare(high.constant, low.constant) < 0
    except EvaluationFault as fault:
        raise ExpressionFault(str(fault)) from fault
    if upside_down:
        raise ExpressionFault(
            f"Illegal values of between, left value({low.constant}) must less than or equal to "
            f"right value({high.constant})"
        )


# ----------------------------------------------------------------------------------------- values


def _compare(one: str | int | float | bool, other: str | int | float | bool) -> int:
    """Sign of the difference, -1 too for what has none. A text takes the type of the other side."""
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
        raise EvaluationFault("a truth value on the left of a text")
    return -1


def _compare_doubles(one: float, other: float) -> int:
    """Double.compareTo: NaN equals itself and is the greatest, -0.0 is less than 0.0."""
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
        raise EvaluationFault(f"{text[:64]!r} is no integer up to {limit}")
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
    """Double.valueOf."""
    bare = text.strip(_JAVA_BLANKS)
    if _DOUBLE.fullmatch(bare) is not None:
        return float(bare if bare.endswith("y") else bare.rstrip("fFdD"))
    if _HEX_DOUBLE.fullmatch(bare) is not None:
        try:
            return float.fromhex(bare.rstrip("fFdD"))
        except OverflowError:
            return math.copysign(math.inf, -1 if bare.startswith("-") else 1)
    raise EvaluationFault(f"{text[:64]!r} is no number")
