"""The fastjson dialect: accepted texts, refused texts, and encoded values."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.remoting.fastjson import DEPTH_MAX, FastjsonDecodeError, ObjectKey, dumps, loads
from rmqpy.remoting.java_values import java_double

QUEUE = ObjectKey.of({"topic": "T", "brokerName": "b", "queueId": 1})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,2.5,true,false,null,"x"]}', {"a": [1, 2.5, True, False, None, "x"]}),
        ('{0:"a",-1:"b",12L:"c"}', {"0": "a", "-1": "b", "12": "c"}),
        ('{"T@CG":{0:5,1:6\n\t\t}\n}', {"T@CG": {"0": 5, "1": 6}}),
        ("{'a':'it\\'s \"x\"'}", {"a": 'it\'s "x"'}),
        ("{name:1,$x_2:2,_y:3,ü:4}", {"name": 1, "$x_2": 2, "_y": 3, "ü": 4}),
        ("[1,2,]", [1, 2]),
        ('{"a":1,}', {"a": 1}),
        ("{,}"[:1] + "}", {}),
        ("// first\n{/* in */a /**/ : /* x */1 // end\n}", {"a": 1}),
        ("[1] // to the end", [1]),
        ("[12L,3S,4B,1.5F,2.5D,1e3,-7]", [12, 3, 4, 1.5, 2.5, 1000.0, -7]),
        ("[undefined,NaN,null]", [None, None, None]),
        ('{"a":1,"a":2}', {"a": 2}),
        ("{a:1,'a':2}", {"a": 2}),
        ('"\\u0041\\x42\\101\\v\\/\\ud83d\\ude00"', "AB\x0101\x0b/😀"),
        ("['\\ud83d\\ude00', '\\n']", ["😀", "\n"]),
        ('"a\nb"', "a\nb"),
        ("\ufeff {} ", {}),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        (
            '{{"brokerName":"b","queueId":1,"topic":"T"}:7}',
            {QUEUE: 7},
        ),
        ("{{topic:'T',queueId:1,brokerName:'b'}:{x:[{}]}}", {QUEUE: {"x": [{}]}}),
        (
            '{{"a":{"b":[1,{"c":2}]}}:1}',
            {ObjectKey((("a", ObjectKey((("b", (1, ObjectKey((("c", 2),)))),))),)): 1},
        ),
    ],
)
def test_the_dialect_is_decoded(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads(text.encode("utf-8", "surrogatepass")) == value


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("   ", 3),
        ("{", 1),
        ("{a:1", 4),
        ("{a 1}", 3),
        ("{a:1 b:2}", 5),
        ("[1 2]", 3),
        ("[1,,2]", 3),
        ("{a:}", 3),
        ("tru", 0),
        ("[nil]", 1),
        ("'abc", 0),
        ("'\\q'", 2),
        ("'\\u12'", 3),
        ("'\\u00g0'", 3),
        ("{} x", 3),
        ("/ 1", 0),
        ("/* 1", 0),
        ("[-]", 1),
        ("{[1]:2}", 1),
        ("[" + "9" * 401 + "L]", 1),
        ("\x00", 0),
    ],
)
def test_errors_have_the_position(text: str, position: int) -> None:
    with pytest.raises(FastjsonDecodeError) as fault:
        loads(text)
    assert fault.value.position == position
    assert str(fault.value).endswith(f"at character {position}")


@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("{a:", "}"), ("{'a':[", "]}")]
)
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    levels = DEPTH_MAX // len([char for char in opening if char in "[{"])
    inner = "" if opening.endswith("[") else "1"
    loads(opening * levels + inner + closing * levels)
    with pytest.raises(FastjsonDecodeError, match="nesting deeper"):
        loads(opening * (levels + 1) + inner + closing * (levels + 1))


@pytest.mark.parametrize("opening", ["[", '{"a":', "{a:", "{", "{{a:1}:"])
def test_deep_nesting_does_not_crash(opening: str) -> None:
    with pytest.raises(FastjsonDecodeError):
        loads(opening * 200_000)


def test_many_siblings_are_not_nested() -> None:
    assert loads("[" + ",".join(["[{}]"] * 1000) + "]") == [[{}]] * 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": [True, None, 1.5]}, '{"a":1,"b":[true,null,1.5]}'),
        ({0: "a", 10: "b"}, '{0:"a",10:"b"}'),
        ({QUEUE: 7}, '{{"brokerName":"b","queueId":1,"topic":"T"}:7}'),
        (
            ["\x01\x0b\x1f\x7f\x9f\xa0\u2028", '"\\/', "é中😀"],
            '["\\u0001\\u000B\\u001F\\u007F\\u009F\xa0\\u2028","\\"\\\\/","é中😀"]',
        ),
        ([0.0, 100.0, 1e7, 1e-5, 1.23456789125e8, 0.001, 4.35], None),
        ([float("nan"), float("inf")], "[null,null]"),
        ({}, "{}"),
        (("a",), '["a"]'),
    ],
)
def test_values_are_encoded_as_by_fastjson(value: object, text: str | None) -> None:
    expected = text or "[0.0,100.0,1.0E7,1.0E-5,1.23456789125E8,0.001,4.35]"
    assert dumps(value).decode() == expected


def test_strict_encoding_quotes_and_sorts_the_keys() -> None:
    value = {"z": "/\u4e2d😀\x7f~", "a": {10: "x", 2: "y", 0: "z"}, "q": {QUEUE: 7}}
    assert dumps(value, strict=True).decode() == (
        '{"a":{"0":"z","2":"y","10":"x"},'
        '"q":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":7},'
        '"z":"\\/\\u4E2D\\uD83D\\uDE00\\u007F~"}'
    )


def test_pretty_encoding_is_that_of_fastjson() -> None:
    value = {
        "list": ["a", 1],
        "set": ("x", "y"),
        "empty": [],
        "map": {},
        "beans": [{"k": "v"}, {"k": "v"}],
        "ints": {0: 5, 1: 6},
        "queues": {QUEUE: {"o": 1}},
    }
    assert dumps(value, pretty=True).decode() == (
        '{\n\t"list":[\n\t\t"a",\n\t\t1\n\t],\n\t"set":["x","y"],\n\t"empty":[],\n\t"map":{},'
        '\n\t"beans":[\n\t\t{\n\t\t\t"k":"v"\n\t\t},\n\t\t{\n\t\t\t"k":"v"\n\t\t}\n\t],'
        '\n\t"ints":{0:5,1:6\n\t},'
        '\n\t"queues":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T"\n\t\t}:{'
        '\n\t\t\t"o":1\n\t\t}\n\t}\n}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        (9999999.5, "9999999.5"),
        (123456789.123, "1.23456789123E8"),
        (1.0e22, "1.0E22"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (2e-7, "2.0E-7"),
        (0.0001, "1.0E-4"),
        (-0.001, "-0.001"),
        (2.925073126828171, "2.925073126828171"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_printed_as_by_java(value: float, text: str) -> None:
    assert java_double(value) == text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@given(JSON, st.booleans(), st.booleans())
def test_an_encoded_value_can_be_decoded(value: object, pretty: bool, strict: bool) -> None:
    encoded = dumps(value, pretty=pretty, strict=strict)
    assert loads(encoded) == value
    assert json.loads(encoded) == value


@given(JSON)
def test_the_tolerant_decoder_agrees_with_the_strict_one(value: object) -> None:
    assert loads(dumps(value) + b"//") == value


@given(st.text(alphabet="{}[]:,'\"\\/*ab01.-+eELu \n", max_size=40))
def test_garbage_is_an_error_or_a_value(text: str) -> None:
    with suppress(FastjsonDecodeError):
        loads(text)


def test_the_number_of_containers_is_bounded() -> None:
    assert loads("[" + "[]," * 999 + "[]]") == [[]] * 1000
    with pytest.raises(FastjsonDecodeError, match="more than 1000000 objects and arrays"):
        loads("[" + "[]," * 1_000_000 + "[]]")
