"""SQL92 expressions in C: the same results as in Python, on any expression and any properties."""

from __future__ import annotations

import json
import lzma
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqpy.broker.filter.sql_evaluator import FilterEvaluationError
from rmqpy.broker.filter.sql_parser import NESTING_MAX, Expression, compile_expression
from rmqpy.broker.filter.sql_program import NAMES_MAX, STEPS_MAX, UNITS_MIN, WORK_MAX
from rmqpy.broker.filter.tags import FilterSyntaxError
from rmqpy.codec import backend
from rmqpy.codec.properties import decode_properties

if backend.implementation != "c":
    pytest.skip(f"no C to compare with: {backend.reason}", allow_module_level=True)

from rmqpy.broker.fastpath.sql_filters import CSqlProgram
from rmqpy.codec.native.binding import ffi, lib

VECTORS = Path(__file__).parents[1] / "filter" / "data" / "sql_vectors.json.xz"
RESULTS: dict[int, Any] = {
    lib.RMQ_MATCH_UNKNOWN: None,
    lib.RMQ_MATCH_FALSE: False,
    lib.RMQ_MATCH_TRUE: True,
    lib.RMQ_MATCH_FAILED: "failed",
    lib.RMQ_MATCH_PYTHON: "left to Python",
}


def in_python(expression: Expression, raw: bytes) -> Any:
    try:
        return expression.evaluate(decode_properties(raw))
    except FilterEvaluationError:
        return "failed"


def in_c(expression: Expression, raw: bytes) -> Any:
    return RESULTS[CSqlProgram(expression).match(raw)]


def encoded(properties: dict[str, str]) -> bytes:
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()


def test_every_result_matches_javas() -> None:
    compared = left = 0
    for text, java, results in json.loads(lzma.decompress(VECTORS.read_bytes())):
        if java != "ok":
            continue
        expression = compile_expression(text)
        names = {None: "null", True: "true", False: "false", "failed": "error"}
        for properties, value in results:
            found = in_c(expression, encoded(properties)) if all(properties.values()) else ""
            if found in names:
                assert names[found] == value, (text, properties)
                compared += 1
            left += found == "left to Python"
    assert compared > 1_000
    assert left < compared / 50


NUMBERS = [
    *["0", "1", "-1", "+7", "3", "07", "2147483647", "2147483648", "-2147483648", "-2147483649"],
    *["9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" * 20, "0" * 21],
    *[
        "1.5",
        ".5",
        "5.",
        ".",
        "1e3",
        "1E-3",
        "1e400",
        "-1e-400",
        "1e",
        "2f",
        "2D",
        "1.5e2F",
        "0x10",
    ],
    *["NaN", "-NaN", "Infinity", "-Infinity", "nan", "infinity", "0.0", "-0.0", " 3 ", "\t4.5\n"],
    *[
        "0x1.8p3",
        "0X.8P-1d",
        "1_000",
        "٣",
        "0x10",
        "+",
        "-",
        "--1",
        "1 2",
        "9007199254740993",
        "3.0",
    ],
    *["0." + "1" * 70, "1" * 70, "123456789.123456789", "4.9e-324", "1.7976931348623157e308"],
]
WORDS = ["x", "y", "true", "TRUE", "tRuE", "false", "日本", "\ufffd", "it's", "a b", "", "ü"]
NAMES = ["a", "b", "c", "TAGS", "_x$1"]

literal = st.one_of(
    st.sampled_from(["1", "3", "0", "2147483647", "2147483648", "5l", "9223372036854775807"]),
    st.sampled_from(["1.5", "3.0", "1e3", ".5", "9007199254740993.0"]),
    st.sampled_from([*NUMBERS, *WORDS]).map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.sampled_from(["TRUE", "false", "NULL"]),
)
texts = st.lists(st.sampled_from([*WORDS, *NUMBERS]), min_size=1, max_size=4).map(
    lambda some: ", ".join("'" + text.replace("'", "''") + "'" for text in some)
)


def larger(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(part, st.sampled_from(["=", "<>", ">", ">=", "<", "<="]), part).map(" ".join),
        st.tuples(part, st.sampled_from(["AND", "OR"]), part).map(" ".join),
        st.tuples(part, st.sampled_from(["", "NOT "]), part, part).map(
            lambda of: f"{of[0]} {of[1]}BETWEEN {of[2]} AND {of[3]}"
        ),
        st.tuples(st.sampled_from(NAMES), st.sampled_from(["", "NOT "]), texts).map(
            lambda of: f"{of[0]} {of[1]}IN ({of[2]})"
        ),
        st.tuples(part, st.sampled_from(["IS NULL", "IS NOT NULL"])).map(" ".join),
        st.tuples(st.sampled_from(["NOT ", "-", "+"]), part).map("".join),
        part.map(lambda inner: f"({inner})"),
    )


expressions = st.recursive(st.one_of(st.sampled_from(NAMES), literal), larger, max_leaves=12)
properties_of_messages = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "other", ""]).map(str.encode),
        st.one_of(
            st.sampled_from([*NUMBERS, *WORDS]).map(str.encode),
            st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")),
            st.binary(max_size=6),
        ),
    ).map(b"\x01".join),
    max_size=7,
).map(b"\x02".join)


@given(expressions, st.lists(properties_of_messages, min_size=1, max_size=4))
@example("a = '\ufffd'", [b"a\x01\xff"])
@example("a = b", [b"a\x01\xff\x02b\x01\xfe", b"a\x01\xe2\x82\x02b\x01\xef\xbf\xbd"])
@example("a = 1", [b"a\x012\x02a\x011", b"a\x011\x02a\x01", b"a\x011\x02a\x012\x02"])
@example("a > 1 OR b = 'x'", [b"b\x01x", b"a\x01many\x02b\x01x", b"a\x010\x02b\x01x"])
@example("NOT a NOT BETWEEN b AND 3", [b"a\x012", b"a\x012\x02b\x01x", b"a\x019\x02b\x011"])
def test_equal_on_any_expression_and_properties(text: str, messages: list[bytes]) -> None:
    try:
        expression = compile_expression(text)
    except FilterSyntaxError:
        return
    for raw in messages:
        expected, found = in_python(expression, raw), in_c(expression, raw)
        if found == "left to Python":
            assert not raw.isascii() or b"0x" in raw.lower() or len(raw) > 64, raw
        else:
            assert found is expected or (found == expected == "failed"), (text, raw)


def test_one_text_of_each_kind_is_left_to_python() -> None:
    for text in ("٣", "日本"):
        assert in_c(compile_expression("a = 3"), f"a\x01{text}".encode()) == "left to Python"
    for text in ("0x1p3", "0.5" + "0" * 70):
        assert in_c(compile_expression("a > 1.5"), f"a\x01{text}".encode()) == "left to Python"
    assert in_c(compile_expression("a = 1.5"), "a\x01日本".encode()) == "failed"


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["a = 1"] * (STEPS_MAX // 4)),
        " OR ".join(f"p{number} = 1" for number in range(NAMES_MAX + 1)),
        "a = '\ud800'",
    ],
)
def test_what_exceeds_a_limit_has_no_program(text: str) -> None:
    with pytest.raises(ValueError, match="limits of a program"):
        CSqlProgram(compile_expression(text))


def test_the_deepest_expressions_have_a_program() -> None:
    for text in (
        "(" * NESTING_MAX + "a = 1" + ")" * NESTING_MAX,
        "1 = (" * (NESTING_MAX - 1) + "a = 1" + ")" * (NESTING_MAX - 1),
        " OR ".join(f"a = {number}" for number in range(STEPS_MAX // 5)),
        "a" + " = b" * (NESTING_MAX - 1),
    ):
        with suppress(FilterSyntaxError):
            expression = compile_expression(text)
            assert in_c(expression, b"a\x011") == in_python(expression, b"a\x011")


def test_an_expensive_expression_examines_fewer_messages() -> None:
    cheap = compile_expression("a BETWEEN 1 AND 3 AND b IN ('x', 'y')")
    assert cheap.units_max >= 800
    chain = compile_expression(" OR ".join(f"a = {number}" for number in range(1_000)))
    assert chain.units_max == UNITS_MIN
    texts = ", ".join(f"'{number}'" for number in range(1_000))
    assert compile_expression(f"a IN ({texts})").units_max < 300
    assert all(one.units_max * one.unit_cost <= WORK_MAX for one in (cheap, chain))


@given(st.randoms(use_true_random=False), properties_of_messages)
def test_any_program_is_refused_or_runs(rng: random.Random, raw: bytes) -> None:
    """The compiler produces only valid programs; C does not rely on that."""
    base = CSqlProgram(compile_expression("a BETWEEN 1 AND b OR c NOT IN ('x', 'y') AND -d = 2.5"))
    count = base.pointer.step_count
    steps = ffi.new("rmq_sql_step[]", count)
    ffi.memmove(steps, base.pointer.steps, ffi.sizeof(steps))
    for _ in range(rng.choice([1, 2, 8])):
        step = steps[rng.randrange(count)]
        name = rng.choice(["op", "argument", "count"])
        setattr(step, name, rng.choice([-1, 0, 1, 2, 3, 5, 9, 10, 11, 12, 13, 2**31 - 1, -(2**31)]))
    base.pointer.steps = steps
    base.pointer.step_count = rng.choice([count, count, rng.randrange(count), 0, -1])
    if lib.rmq_sql_check(base.pointer):
        assert base.match(raw) in RESULTS
