"""SQL92 expressions as programs: lists of steps for a stack of values, which native/sql.c carries
out on the properties of a message without decoding them.

Each step leaves what :mod:`.sql_evaluator` computes for the same part of the expression; the enums
of native/rmqpy_native.h describe the steps. An operand that is not evaluated in Python is skipped::

    a > 3 AND b = 'x'       PROPERTY a, SKIP_NULL 2, CONSTANT 3, ORDER >,
                            SKIP False 4, PROPERTY b, CONSTANT 'x', EQUAL, COMBINE False
    a BETWEEN 1 AND 3       PROPERTY a, SKIP_NULL 5, CONSTANT 1, LOW >= 3, CONSTANT 3, ORDER <=,
                            COMBINE False

Invariants: skips go forward; every part adds exactly one value to the stack.

An expression has no program if it exceeds a limit of this module, or if one of its texts is not
valid UTF-8; Python evaluates it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from rmqpy.model.values import define

STEPS_MAX: Final = 1024
NAMES_MAX: Final = 32

WORK_MAX: Final = 51_200
"""The work of one pull, in steps: the number of messages that it examines times the cost of each.
A pull with an expensive expression therefore examines fewer messages than Java's 800, and the
consumer continues after them with its next pull.
"""
WORK_OF_TURN: Final = WORK_MAX // 4
"""The work after which a pull ends, and further ones wait for the next turn, if another connection
has a request that is not a pull with a filter.
"""

UNITS_MIN: Final = 16
"""The number of messages that a pull examines, however expensive its expression is."""

RECORD_COST: Final = 32
"""The cost of finding a message and its properties, in steps."""

TEXTS_PER_STEP: Final = 4
"""The texts of IN that cost as much as a step."""


class SqlOp(IntEnum):
    CONSTANT = 0
    PROPERTY = 1
    TRUTH = 2
    NOT = 3
    NEGATE = 4
    IS_NULL = 5
    EQUAL = 6
    IN = 7
    ORDER = 8
    LOW = 9
    SKIP_NULL = 10
    SKIP = 11
    COMBINE = 12


ORDER_NAMES: Final = (">", ">=", "<", "<=")
"""The signs of ``ORDER`` and ``LOW``, by their number in C."""


class Long(int):
    """A 64-bit integer; a plain int has 32 bits."""


Value = str | int | float | bool | None


class SqlStep(NamedTuple):
    """A step. ``operand`` is a constant, a name, a sign, the texts of IN, or the decisive truth."""

    op: SqlOp
    operand: Value | tuple[str, ...] = None
    skip: int = 0


Code = tuple[SqlStep, ...]


@define(slots=True, frozen=True)
class SqlProgram:
    """A program for C. A step is (number, argument, count)."""

    steps: list[tuple[int, int, int]]
    constants: list[Value]
    names: list[str]


def unit_cost(code: Sequence[SqlStep]) -> int:
    """Return the work to examine one message, in steps."""
    texts = sum(len(step.operand) for step in code if isinstance(step.operand, tuple))
    return min(WORK_MAX // UNITS_MIN, RECORD_COST + len(code) + texts // TEXTS_PER_STEP)


def assemble(code: Sequence[SqlStep]) -> SqlProgram | None:
    """Return the program of an expression, or None if only Python can evaluate it."""
    if len(code) > STEPS_MAX:
        return None
    constants: list[Value] = []
    names: dict[str, int] = {}
    steps = []
    for op, operand, skip in code:
        argument, count = 0, skip
        if op is SqlOp.PROPERTY:
            argument = names.setdefault(str(operand), len(names))
        elif op is SqlOp.CONSTANT:
            argument = len(constants)
            assert not isinstance(operand, tuple)
            constants.append(operand)
        elif op is SqlOp.IN:
            assert isinstance(operand, tuple)
            argument, count = len(constants), len(operand)
            constants += operand
        elif op in (SqlOp.ORDER, SqlOp.LOW):
            argument = ORDER_NAMES.index(str(operand))
        elif op in (SqlOp.SKIP, SqlOp.COMBINE):
            argument = int(operand is True)
        steps.append((int(op), argument, count))
    if len(names) > NAMES_MAX or not all(map(_is_utf8, constants)):
        return None
    return SqlProgram(steps, constants, list(names))


def combine(parts: Sequence[Code], decisive: bool) -> Code:
    """Return AND (decided by False) or OR (decided by True) of the parts."""
    rest = sum(len(part) + 2 for part in parts[1:])
    code = list(parts[0])
    for part in parts[1:]:
        code += [SqlStep(SqlOp.SKIP, decisive, rest - 1), *part, SqlStep(SqlOp.COMBINE, decisive)]
        rest -= len(part) + 2
    return tuple(code)


def order(left: Code, sign: str, right: Code) -> Code:
    return (
        *left,
        SqlStep(SqlOp.SKIP_NULL, skip=len(right) + 1),
        *right,
        SqlStep(SqlOp.ORDER, sign),
    )


def between(value: Code, low: Code, high: Code, signs: tuple[str, str], decisive: bool) -> Code:
    """Return the two comparisons of ``value``, which is evaluated once."""
    end = (*high, SqlStep(SqlOp.ORDER, signs[1]), SqlStep(SqlOp.COMBINE, decisive))
    rest = (*low, SqlStep(SqlOp.LOW, signs[0], len(end)), *end)
    return (*value, SqlStep(SqlOp.SKIP_NULL, skip=len(rest)), *rest)


def _is_utf8(value: Value) -> bool:
    return not isinstance(value, str) or not any("\ud800" <= char <= "\udfff" for char in value)
