"""Read the schema of bodies from a file."""

from __future__ import annotations

import json
from pathlib import Path

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.lake.avro_body import AvroBody
from rmqpy.pipeline.lake.body_schema import BodySchema
from rmqpy.pipeline.lake.json_body import JsonBody

__all__ = ["read_body_schema"]


def read_body_schema(path: str) -> BodySchema:
    """Return the schema in a file: Avro if its name ends with ``.avsc``, otherwise JSON Schema.

    Raise ConfigError if it cannot be read or used.
    """
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the file of a schema") from None
    except ValueError as error:
        raise ConfigError(f"{path}: found no JSON ({error}), expected a schema") from None
    try:
        return AvroBody.of(schema) if path.endswith(".avsc") else JsonBody.of(schema)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
