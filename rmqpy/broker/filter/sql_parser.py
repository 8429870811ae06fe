"""SQL92 expressions over message properties, with the results of Java's filter module.

::

    or          := and {OR and}
    and         := equality {AND equality}
    equality    := comparison {(= | <>) comparison | IS NULL | IS NOT NULL}
    comparison  := unary {(> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                          | [NOT] IN ('text' {, 'text'})}
    unary       := + unary | - unary | NOT unary | primary
    primary     := literal | property | ( or )

The words of the grammar are case-insensitive; ``--`` and ``/* */`` start comments. Text after a
complete expression is ignored, as in Java. Values are texts (all properties), 32-bit and 64-bit
integers, doubles, truth values and null (an absent property).

====================  =============================================================
=, <>                 a text is converted to the type of the number it is compared
                      with; null on the left is unknown, only on the right it is
                      false
>, >=, <, <=          the same; two texts are compared as doubles; null is unknown
IN                    texts only; null is unknown
AND, OR, NOT          three-valued
====================  =============================================================

If a text cannot be converted, the whole evaluation fails, and the message does not match. An
expression matches if it is true; unknown is not true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from attrs import define

from rmqpy.broker.filter.sql_evaluator import (
    ORDERS,
    Evaluate,
    FilterEvaluationError,
    SqlNode,
    and_or,
    between,
    constant,
    decimal,
    double,
    equal,
    is_null,
    membership,
    negative,
    not_,
    ordered,
    property_,
    truth_of,
)
from rmqpy.broker.filter.sql_program import WORK_MAX, Code, unit_cost
from rmqpy.broker.filter.tags import FilterSyntaxError

EXPRESSION_LENGTH_MAX: Final = 16 * 1024
REMEMBERED_MAX: Final = 64
REMEMBERED_LENGTH_MAX: Final = 512
"""Compiled expressions are remembered, because a pull can carry its expression; longer ones are
not, to bound the memory.
"""

NESTING_MAX: Final = 50
"""The limit for nested parentheses, signs and NOTs, and for chains of comparisons."""

RULES_A_LEVEL: Final = 3
"""The number of depth-counting grammar rules that one parenthesis passes through."""


@define(slots=True, frozen=True)
class Expression:
    """A compiled expression."""

    text: str
    evaluate: Evaluate
    code: Code

    @property
    def unit_cost(self) -> int:
        """The work to examine one message (:mod:`.sql_program`)."""
        return unit_cost(self.code)

    @property
    def units_max(self) -> int:
        """The number of messages that one pull may examine."""
        return WORK_MAX // self.unit_cost

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the expression is true for these properties; a failed evaluation does not
        match.
        """
        try:
            return self.evaluate(properties) is True
        except FilterEvaluationError:
            return False


def compile_expression(text: str) -> Expression:
    """Return the compiled expression. Raises FilterSyntaxError with the reason."""
    if len(text) <= REMEMBERED_LENGTH_MAX:
        return _compile_remembered(text)
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise FilterSyntaxError(f"{len(text)} characters, more than {EXPRESSION_LENGTH_MAX}")
    return _compile(text)


def _compile(text: str) -> Expression:
    node = truth_of(_Parser(text).parse())
    return Expression(text, node.evaluate, node.code)


_compile_remembered: Final = lru_cache(REMEMBERED_MAX)(_compile)


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
_WORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
_END: Final = "end"


class _Token(NamedTuple):
    kind: str
    """The kind of the token. For a ``sign`` and a ``word`` of the grammar it is the text itself."""
    text: str
    position: int


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKENS.match(text, position)
        if found is None:
            raise FilterSyntaxError(f"{text[position]!r} at character {position} is not recognized")
        kind, content = found.lastgroup or "", found.group()
        if kind == "sign" or (kind == "word" and content.upper() in _WORDS):
            kind = content.upper()
        if kind != "space":
            yield _Token(kind, content, position)
        position = found.end()
    yield _Token(_END, "", position)


class _Parser:
    """A recursive-descent parser with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._rest = _tokens(text)
        self._token = next(self._rest)
        self._depth = 0

    def parse(self) -> SqlNode:
        return self._or()

    def _or(self) -> SqlNode:
        return self._chain(self._and, "OR", True)

    def _and(self) -> SqlNode:
        return self._chain(self._equality, "AND", False)

    def _chain(self, part: Callable[[], SqlNode], word: str, decisive: bool) -> SqlNode:
        parts = [part()]
        while self._token.kind == word:
            self._next()
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return and_or(parts, decisive)

    def _equality(self) -> SqlNode:
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
                left = is_null(left)
                left = not_(left) if negated else left
            else:
                left = equal(left, self._comparison())
                left = not_(left) if sign == "<>" else left
        self._leave()
        return left

    def _comparison(self) -> SqlNode:
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
            if kind in ORDERS:
                self._next()
                left = ordered(left, kind, self._unary())
            elif kind == "BETWEEN":
                left = self._between(left, negated)
            elif kind == "IN":
                left = self._in(left, negated)
            else:
                break
            links = self._one_more(links)
        self._leave()
        return left

    def _between(self, value: SqlNode, negated: bool) -> SqlNode:
        self._next()
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        return between(value, low, high, negated)

    def _in(self, left: SqlNode, negated: bool) -> SqlNode:
        self._next()
        self._expect("(")
        texts = {self._string()}
        while self._token.kind == ",":
            self._next()
            texts.add(self._string())
        self._expect(")")
        if left.property is None:
            raise FilterSyntaxError("IN requires a property on its left")
        found = membership(left, frozenset(texts))
        return not_(found) if negated else found

    def _unary(self) -> SqlNode:
        self._enter()
        kind = self._token.kind
        if kind == "+":
            self._next()
            node = self._unary()
        elif kind == "-":
            self._next()
            node = negative(self._unary())
        elif kind == "NOT":
            self._next()
            node = not_(truth_of(self._unary()))
        else:
            node = self._primary()
        self._leave()
        return node

    def _primary(self) -> SqlNode:
        kind = self._token.kind
        if kind == "(":
            self._next()
            node = self._or()
            self._expect(")")
            return node
        if kind == "word":
            return property_(self._take().text)
        if kind == "string":
            return constant(self._string())
        if kind == "decimal":
            return constant(decimal(self._take().text))
        if kind == "float":
            return constant(double(self._take().text))
        if kind in ("TRUE", "FALSE", "NULL"):
            self._next()
            value = {"TRUE": True, "FALSE": False, "NULL": None}[kind]
            return constant(value, is_boolean=True)
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
            raise FilterSyntaxError(f"nested more than {NESTING_MAX} levels deep")

    def _leave(self) -> None:
        self._depth -= 1

    @staticmethod
    def _one_more(links: int) -> int:
        """Count one more link in a chain of comparisons."""
        if links == NESTING_MAX:
            raise FilterSyntaxError(f"a chain of more than {NESTING_MAX} comparisons")
        return links + 1

    def _unexpected(self) -> FilterSyntaxError:
        what = repr(self._token.text) if self._token.kind != _END else "the end"
        return FilterSyntaxError(f"{what} at character {self._token.position} is unexpected")
