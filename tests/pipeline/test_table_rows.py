"""Fields of bodies and masking: what a table must have, and what must never reach it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import Row
from harness.store import StoreRig

from rmqpy.cli import main
from rmqpy.codec.properties import encode_properties
from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.lake.body_schema import NotOfSchemaError
from rmqpy.pipeline.lake.json_body import JsonBody
from rmqpy.pipeline.lake.masking import read_masking
from rmqpy.pipeline.lake.schema_file import read_body_schema
from rmqpy.store.files.disk import OsFileSystem

pytestmark = pytest.mark.spark
for package in ("pyarrow", "fastavro"):
    pytest.importorskip(package)

SECRET = "ada@example.org"
KEY = b"0123456789abcdef"
ORDER = {
    "id": 7,
    "at": "2026-11-28T10:00:00+01:00",
    "customer": {"email": SECRET, "name": "Ada"},
    "lines": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2}],
    "labels": {"color": "red"},
    "unknown": [1, 2],
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "at": {"type": "string", "format": "date-time"},
        "customer": {
            "type": "object",
            "properties": {"email": {"type": ["string", "null"]}, "name": {"type": "string"}},
        },
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "price": {"type": "number"}},
            },
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "paid": {"type": "boolean"},
    },
}
FIELDS = {
    "id": 7,
    "at": datetime(2026, 11, 28, 9, tzinfo=UTC),
    "customer": {"email": SECRET, "name": "Ada"},
    "lines": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2.0}],
    "labels": [("color", "red")],
    "paid": None,
}

Appended = Callable[..., list[Row]]


@pytest.fixture
def rig(tmp_path: Path) -> StoreRig:
    return StoreRig(OsFileSystem(), str(tmp_path / "store"))


@pytest.fixture
def appended(rig: StoreRig, tmp_path: Path) -> Appended:
    """Return a function that appends the store with options, and returns the rows of the table."""

    def run(schema: Any = None, rules: str | None = None, suffix: str = ".json") -> list[Row]:
        from pyarrow import dataset

        words = ["--table", "parquet", "--to", str(tmp_path / "table"), "--broker-name", "b"]
        if schema is not None:
            file = tmp_path / f"schema{suffix}"
            file.write_text(json.dumps(schema))
            words += ["--body-schema", str(file)]
        if rules is not None:
            (tmp_path / "key").write_bytes(KEY + b"\n")
            (tmp_path / "mask.toml").write_text(f'key_file = "key"\n{rules}')
            words += ["--mask", str(tmp_path / "mask.toml")]
        assert main(["pipeline", "append", rig.root, *words]) == 0
        rows: list[Row] = (
            dataset.dataset(tmp_path / "table", format="parquet").to_table().to_pylist()
        )
        return rows

    return run


def hashed(value: str) -> str:
    return hmac.new(KEY, value.encode(), hashlib.sha256).hexdigest()


def test_json_bodies_become_fields(
    rig: StoreRig, appended: Appended, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [
        json.dumps(ORDER).encode(),
        b'{"id": 1.0}',
        b'{"id": true}',
        b'{"id": "7"}',
        b'{"id": 99999999999999999999}',
        b'{"at": "2026-11-28T10:00:00Z"}',
        b'{"id": 1, "at": "yesterday"}',
        b'{"id": 1, "customer": {"name": "\\ud800"}}',
        b"[1]",
        b"\xff",
        b"",
        b"[" * 100_000,
    ]
    for number, body in enumerate(bodies):
        rig.changes["mapped_file_size_commit_log"] = 1 << 20
        rig.write(number, body=body)
    rows = appended(SCHEMA)
    assert [row["body"] for row in rows] == bodies
    assert rows[0]["fields"] == FIELDS
    assert rows[1]["fields"] == {**dict.fromkeys(FIELDS), "id": 1}
    assert [row["fields"] for row in rows[2:]] == [None] * 10
    assert "10 bodies could not be read" in capsys.readouterr().err


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {
            "name": "total",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {
            "name": "customer",
            "type": {
                "type": "record",
                "name": "Customer",
                "fields": [{"name": "email", "type": "string"}, {"name": "was", "type": "State"}],
            },
        },
        {"name": "other", "type": ["null", "Customer"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": {"type": "map", "values": "int"}},
    ],
}
DATUM = {
    "id": 7,
    "at": datetime(2026, 11, 28, 9, tzinfo=UTC),
    "day": date(2026, 11, 28),
    "total": Decimal("12.30"),
    "state": "NEW",
    "customer": {"email": SECRET, "was": "DONE"},
    "other": None,
    "tags": ["a", "b"],
    "labels": {"x": 1},
}


def avro(datum: Any) -> bytes:
    from fastavro import parse_schema, schemaless_writer

    stream = BytesIO()
    schemaless_writer(stream, parse_schema(AVRO), datum)
    return stream.getvalue()


def test_avro_bodies_become_fields(rig: StoreRig, appended: Appended) -> None:
    whole = avro(DATUM)
    for number, body in enumerate((whole, whole[:-1], whole + b"\0", b"", b"\xff" * 40)):
        rig.write(number, body=body)
    rows = appended(AVRO, suffix=".avsc")
    assert rows[0]["fields"] == {**DATUM, "labels": [("x", 1)]}
    assert [row["fields"] for row in rows[1:]] == [None] * 4


def test_masked_values_never_reach_the_table(rig: StoreRig, appended: Appended) -> None:
    properties = encode_properties({"KEYS": SECRET, "TAGS": "vip", "phone": "555", "x": "kept"})
    rig.changes["mapped_file_size_commit_log"] = 1 << 20
    rig.write(0, body=json.dumps(ORDER).encode(), properties=properties)
    rules = """
    [[rule]]
    body = "customer.email"
    with = "hash"
    [[rule]]
    body = "lines.price"
    with = "remove"
    [[rule]]
    property = "KEYS"
    with = "hash"
    [[rule]]
    property = "TAGS"
    with = "remove"
    [[rule]]
    property = "phone"
    with = "redact"
    [[rule]]
    column = "bornHost"
    with = "remove"
    """
    (row,) = appended(SCHEMA, rules)
    kept = {name: value for name, value in row.items() if name not in ("body", "fields")}
    assert SECRET not in repr(row) and "555" not in repr(kept) and "vip" not in repr(row)
    body = json.loads(row["body"])
    assert body["customer"] == {"email": hashed(SECRET), "name": "Ada"}
    assert body["lines"] == [{"sku": "a"}, {"sku": "b"}] and body["unknown"] == [1, 2]
    assert row["fields"]["customer"]["email"] == hashed(SECRET)
    assert [line["price"] for line in row["fields"]["lines"]] == [None, None]
    assert row["keys"] == hashed(SECRET) == dict(row["properties"])["KEYS"]
    assert dict(row["properties"]) == {"KEYS": hashed(SECRET), "phone": "***", "x": "kept"}
    assert row["tags"] is row["tagsCode"] is row["bodyCrc"] is row["bornHost"] is None


def test_another_key_is_refused(
    rig: StoreRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal values would have different hashes in one table."""
    rig.write(0)
    (tmp_path / "m.toml").write_text('key_file = "key"\n[[rule]]\nproperty = "KEYS"\nwith = "hash"')
    table = ["--table", "parquet", "--to", str(tmp_path / "t"), "--broker-name", "b"]
    words = ["pipeline", "append", rig.root, *table, "--mask", str(tmp_path / "m.toml")]
    (tmp_path / "key").write_bytes(KEY)
    assert main(words) == 0
    (tmp_path / "key").write_bytes(KEY[::-1])
    assert main(words) == 1
    assert "appended with another --mask" in capsys.readouterr().err


def test_copies_of_a_message_are_masked(rig: StoreRig, appended: Appended) -> None:
    """A retry and a dead letter have other topics, but the body of the message."""
    body = json.dumps(ORDER).encode()
    rig.changes["mapped_file_size_commit_log"] = 1 << 20
    rig.write(0, topic=b"orders", body=body)
    retry = encode_properties({"RETRY_TOPIC": "orders"})
    rig.write(1, topic=b"%RETRY%group", body=body, properties=retry)
    rig.write(2, topic=b"%DLQ%group", body=body, properties=retry)
    rig.write(3, topic=b"letters", body=body)
    rule = '[[rule]]\ntopics = ["ord*"]\nbody = "customer.email"\nwith = "redact"'
    rows = appended(None, rule)
    masked = [json.loads(row["body"])["customer"]["email"] == "***" for row in rows]
    assert masked == [True, True, True, False]
    assert [row["bodyCrc"] is None for row in rows] == masked


def test_a_body_that_cannot_be_masked_is_left_out(
    rig: StoreRig, appended: Appended, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, body in enumerate((SECRET.encode(), b"\xff", b'{"other": 1}', b'"text"')):
        rig.write(number, body=body)
    rows = appended(None, '[[rule]]\nbody = "customer.email"\nwith = "redact"')
    assert [row["body"] for row in rows] == [None, None, b'{"other": 1}', b'"text"']
    assert "2 bodies could not be read" in capsys.readouterr().err


def test_the_whole_body_is_masked_and_its_fields_stay(rig: StoreRig, appended: Appended) -> None:
    rig.write(0, body=avro(DATUM))
    rules = (
        '[[rule]]\nbody = "$"\nwith = "remove"\n[[rule]]\nbody = "customer.email"\nwith = "hash"'
    )
    (row,) = appended(AVRO, rules, suffix=".avsc")
    assert row["body"] is None and row["fields"]["customer"]["email"] == hashed(SECRET)
    assert row["fields"]["tags"] == ["a", "b"]


WRONG_RULES = {
    "": "found no rules",
    "rule = 1": "found no rules",
    "[[rule]]\nwith = 'hash'": "found nothing to mask",
    "[[rule]]\nbody = 'a'\nproperty = 'b'\nwith = 'hash'": "found body and property",
    "[[rule]]\nbody = 'a'\nwith = 'blur'": "expected hash, redact, remove",
    "[[rule]]\nbody = 'a..b'\nwith = 'remove'": "expected a name or a path",
    "[[rule]]\ncolumn = 'topic'\nwith = 'remove'": "expected bornHost or storeHost",
    "[[rule]]\nbody = 'a'\nwith = 'remove'\ntopics = 'x'": "expected a list of patterns",
    "[[rule]]\nbody = 'a'\nwith = 'hash'": "no key_file",
    "key_file = 'none'\n[[rule]]\nbody = 'a'\nwith = 'hash'": "create the key file",
    "key_file = 'short'\n[[rule]]\nbody = 'a'\nwith = 'hash'": "expected at least 16",
    "[[rules]]": "found rules, expected key_file",
    "[[rule]\n": "found no TOML",
    "[[rule]]\nbody = 'a'\nwith = 'remove'\ntopic = 'x'": "found topic, expected",
}


@pytest.mark.parametrize("text", WRONG_RULES)
def test_wrong_rules_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret")
    (tmp_path / "mask.toml").write_text(text)
    with pytest.raises(ConfigError, match=WRONG_RULES[text]):
        read_masking(str(tmp_path / "mask.toml"))


WRONG_SCHEMAS = {
    "{}": "expected one type",
    "[]": "expected an object",
    "{": "found no JSON",
    '{"type": "string"}': "not of an object",
    '{"type": "object"}': "without what it contains",
    '{"type": "object", "properties": {}}': "found no properties",
    '{"type": "object", "properties": {"a": {"$ref": "#/b"}}}': r"the keyword \$ref",
    '{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}': "schema.a: found",
    '{"type": "object", "properties": {"a": {"type": "array"}}}': "without what it contains",
}
WRONG_AVRO = {
    '{"type": "record"}': "not valid Avro",
    '"string"': "not of a record",
    '{"type": "record", "name": "A", "fields": [{"name": "b", "type": ["int", "string"]}]}': (
        "found a union"
    ),
    '{"type": "record", "name": "A", "fields": [{"name": "b", "type": ["null", "A"]}]}': (
        "a recursive type"
    ),
    '{"type": "record", "name": "A", "fields": []}': "without fields",
    '{"type": "record", "name": "A", "fields": [{"name": "b", "type":'
    ' {"type": "int", "logicalType": "time-millis"}}]}': "logical type time-millis",
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("a.json", *each) for each in WRONG_SCHEMAS.items()]
    + [("a.avsc", *each) for each in WRONG_AVRO.items()],
)
def test_wrong_schemas_are_refused(name: str, text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_body_schema(str(tmp_path / name))


def test_a_mask_must_fit_the_type_of_its_field(
    rig: StoreRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.write(0)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "m.toml").write_text('[[rule]]\nbody = "lines.price"\nwith = "redact"')
    words = ["--body-schema", str(tmp_path / "s.json"), "--mask", str(tmp_path / "m.toml")]
    table = ["--table", "parquet", "--to", str(tmp_path / "t"), "--broker-name", "b"]
    assert main(["pipeline", "append", rig.root, *table, *words]) == 1
    assert "'redact' for a field of the type double" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_a_body_of_another_type_has_no_fields() -> None:
    body = JsonBody.of(SCHEMA)
    with pytest.raises(NotOfSchemaError):
        body.fields(b'{"id": 1, "lines": {}}')
