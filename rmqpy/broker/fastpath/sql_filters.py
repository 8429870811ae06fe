"""The programs of SQL92 expressions in the form that C reads (native/sql.c)."""

from __future__ import annotations

from typing import Any, Final

from rmqpy.broker.filter.sql_parser import Expression
from rmqpy.broker.filter.sql_program import (
    NAMES_MAX,
    ORDER_NAMES,
    STEPS_MAX,
    WORK_MAX,
    Long,
    SqlOp,
    Value,
    assemble,
)
from rmqpy.codec.native.binding import ffi, lib

_KINDS: Final[dict[type, int]] = {
    type(None): lib.RMQ_VALUE_NULL,
    bool: lib.RMQ_VALUE_TRUTH,
    int: lib.RMQ_VALUE_INT,
    Long: lib.RMQ_VALUE_LONG,
    float: lib.RMQ_VALUE_DOUBLE,
    str: lib.RMQ_VALUE_TEXT,
}
_ORDERS: Final = (
    lib.RMQ_ORDER_GREATER,
    lib.RMQ_ORDER_GREATER_EQUAL,
    lib.RMQ_ORDER_LESS,
    lib.RMQ_ORDER_LESS_EQUAL,
)

for _op in SqlOp:
    assert getattr(lib, f"RMQ_STEP_{_op.name}") == _op, _op
assert tuple(range(len(ORDER_NAMES))) == _ORDERS
assert (lib.RMQ_SQL_STEPS_MAX, lib.RMQ_SQL_NAMES_MAX, lib.RMQ_SQL_WORK_MAX) == (
    STEPS_MAX,
    NAMES_MAX,
    WORK_MAX,
)


class CSqlProgram:
    """A program and the memory to which it refers; ``pointer`` is valid as long as this object."""

    def __init__(self, expression: Expression) -> None:
        """Raises ValueError if only Python can evaluate the expression."""
        program = assemble(expression.code)
        if program is None:
            raise ValueError("the expression exceeds the limits of a program")
        self._texts: list[Any] = []
        self._steps = ffi.new("rmq_sql_step[]", program.steps)
        self._constants = ffi.new("rmq_sql_value[]", max(1, len(program.constants)))
        self._names = ffi.new("rmq_sql_value[]", max(1, len(program.names)))
        for number, value in enumerate(program.constants):
            self._set(self._constants[number], value)
        for number, name in enumerate(program.names):
            self._set(self._names[number], name)
        self.pointer = ffi.new("rmq_sql_program *")
        self.pointer.steps = self._steps
        self.pointer.constants = self._constants
        self.pointer.names = self._names
        self.pointer.step_count = len(program.steps)
        self.pointer.constant_count = len(program.constants)
        self.pointer.name_count = len(program.names)
        self.pointer.unit_cost = expression.unit_cost
        assert lib.rmq_sql_check(self.pointer), expression.text

    def match(self, properties: bytes) -> int:
        """Return the result for the properties of a message, an ``rmq_sql_result``."""
        return lib.rmq_sql_match(
            self.pointer, ffi.from_buffer("uint8_t[]", properties), len(properties)
        )

    def _set(self, target: Any, value: Value) -> None:
        target.kind = _KINDS[type(value)]
        if isinstance(value, float):
            target.real = value
        elif isinstance(value, int):
            target.number = value
        elif isinstance(value, str):
            text = value.encode()
            self._texts.append(ffi.from_buffer("uint8_t[]", text))
            target.text = self._texts[-1]
            target.length = len(text)
