"""A laid-out map as JSON, for who draws it in another process. Its size is bounded by its width."""

from __future__ import annotations

from typing import Any

from attrs import asdict

from rmqpy.audit.picture.layout import MapLayout, MapRow, MapShape
from rmqpy.model.errors import RmqError
from rmqpy.model.typed_json import check_types

__all__ = ["layout_json", "layout_of_json"]


def layout_json(layout: MapLayout) -> dict[str, Any]:
    """Return a layout as plain JSON values."""
    return asdict(layout)


def layout_of_json(tree: Any) -> MapLayout:
    """Decode a layout. Raise RmqError if ``tree`` is none."""
    try:
        return MapLayout(
            rows=[_row(each) for each in tree["rows"]],
            agreement=_shapes(tree["agreement"]),
            ticks=[(float(x), int(offset)) for x, offset in tree["ticks"]],
            verdict=str(tree["verdict"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RmqError(f"found no store map, expected one: {error!r}") from None


def _row(tree: dict[str, Any]) -> MapRow:
    return MapRow(
        name=str(tree["name"]),
        expired=str(tree["expired"]),
        files=_shapes(tree["files"]),
        marks=_shapes(tree["marks"]),
        damage=_shapes(tree["damage"]),
        facts=[str(each) for each in tree["facts"]],
    )


def _shapes(trees: list[dict[str, Any]]) -> list[MapShape]:
    for each in trees:
        check_types(MapShape, {**each, "x": float(each["x"]), "width": float(each["width"])})
    return [MapShape(**each) for each in trees]
