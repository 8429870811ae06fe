"""Arrow arrays of parts of a log, in two encodings.

* :data:`PLAIN` has strings and binaries that every reader understands; the bytes are copied.
* :data:`PACKED` is for a Parquet writer. Repeated texts are in a dictionary, which is hashed once;
  the others are views into the mapped log, from which the writer reads them. The written file is
  the same as with ``PLAIN``. An array keeps the mapping alive.

Positions count from the start of the view. Bytes that are not UTF-8 become the text that Java
reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmqpy.codec.backend import gather, number_parts, part_views
from rmqpy.codec.hashes import java_text

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "PACKED",
    "PLAIN",
    "TIME_MS_MAX",
    "ArrowEncoding",
    "is_utf8",
    "longs",
    "repeated",
    "texts",
    "times",
]

TIME_MS_MAX: Final = (1 << 63) // 1000 - 1
"""The largest distance from 1970 of a timestamp in microseconds, in ms."""

Longs = Sequence[int]


class ArrowEncoding(Protocol):
    """An encoding of texts and bytes."""

    def string(self) -> pyarrow.DataType: ...

    def binary(self) -> pyarrow.DataType: ...

    def repeated_type(self) -> pyarrow.DataType: ...

    def of_few(self, texts: pyarrow.Array, numbers: pyarrow.Array) -> pyarrow.Array:
        """Return the text that each number selects; null where the number is null."""
        ...

    def parts(
        self, kind: pyarrow.DataType, view: memoryview, positions: Longs, lengths: Longs
    ) -> pyarrow.Array:
        """Return these parts of the view, unchanged."""
        ...


class _Plain:
    def string(self) -> pyarrow.DataType:
        import pyarrow as pa

        return pa.string()

    def binary(self) -> pyarrow.DataType:
        import pyarrow as pa

        return pa.binary()

    def repeated_type(self) -> pyarrow.DataType:
        return self.string()

    def of_few(self, texts: pyarrow.Array, numbers: pyarrow.Array) -> pyarrow.Array:
        return texts.take(numbers)

    def parts(
        self, kind: pyarrow.DataType, view: memoryview, positions: Longs, lengths: Longs
    ) -> pyarrow.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        ends = pc.cumulative_sum(longs(lengths))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
        data = pa.py_buffer(gather(view, positions, lengths))
        return pa.Array.from_buffers(kind, len(lengths), [None, offsets.buffers()[1], data])


class _Packed:
    def string(self) -> pyarrow.DataType:
        import pyarrow as pa

        return pa.string_view()

    def binary(self) -> pyarrow.DataType:
        import pyarrow as pa

        return pa.binary_view()

    def repeated_type(self) -> pyarrow.DataType:
        import pyarrow as pa

        return pa.dictionary(pa.int32(), pa.string())

    def of_few(self, texts: pyarrow.Array, numbers: pyarrow.Array) -> pyarrow.Array:
        import pyarrow as pa

        return pa.DictionaryArray.from_arrays(numbers, texts)

    def parts(
        self, kind: pyarrow.DataType, view: memoryview, positions: Longs, lengths: Longs
    ) -> pyarrow.Array:
        import pyarrow as pa

        views = pa.py_buffer(part_views(view, positions, lengths))
        return pa.Array.from_buffers(kind, len(lengths), [None, views, pa.py_buffer(view)])


PLAIN: Final[ArrowEncoding] = _Plain()
PACKED: Final[ArrowEncoding] = _Packed()


def longs(values: Longs) -> pyarrow.Array:
    """Return an int64 array; an ``array`` is not copied."""
    import pyarrow as pa

    buffer = values if isinstance(values, array) else array("q", values)
    return pa.Array.from_buffers(pa.int64(), len(buffer), [None, pa.py_buffer(buffer)])


def times(values_ms: array[int]) -> pyarrow.Array:
    """Return UTC timestamps; null where a value is outside the range of a timestamp."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored, kind = longs(values_ms), pa.timestamp("us", tz="UTC")
    least, most = pc.min_max(stored).values()
    if not (least.is_valid and least.as_py() >= -TIME_MS_MAX and most.as_py() <= TIME_MS_MAX):
        low, high = pa.scalar(-TIME_MS_MAX, pa.int64()), pa.scalar(TIME_MS_MAX, pa.int64())
        is_time = pc.and_(pc.greater_equal(stored, low), pc.less_equal(stored, high))
        stored = pc.if_else(is_time, stored, pa.scalar(None, pa.int64()))
    return pc.multiply(stored, 1000).view(kind)


def repeated(
    form: ArrowEncoding,
    view: memoryview,
    positions: Longs,
    lengths: Longs,
    text: Callable[[bytes], str] = java_text,
) -> pyarrow.Array:
    """Return texts with few distinct values; null where the length is 0."""
    import pyarrow as pa

    numbered = number_parts(view, positions, lengths)
    texts = pa.array(map(text, numbered.texts), pa.string())
    buffer = [_present(lengths), pa.py_buffer(numbered.numbers)]
    return form.of_few(texts, pa.Array.from_buffers(pa.int32(), len(lengths), buffer))


def texts(
    form: ArrowEncoding,
    view: memoryview,
    positions: Longs,
    lengths: Longs,
    *,
    with_null: bool = False,
) -> pyarrow.Array:
    """Return texts; with ``with_null``, texts of length 0 become null."""
    import pyarrow as pa

    result = form.parts(form.string(), view, positions, lengths)
    if not is_utf8(result):
        raw = form.parts(form.binary(), view, positions, lengths).to_pylist()
        result = pa.array([java_text(each) for each in raw], form.string())
    if not with_null:
        return result
    return pa.Array.from_buffers(
        result.type, len(result), [_present(lengths), *result.buffers()[1:]]
    )


def is_utf8(result: pyarrow.Array) -> bool:
    """Return whether all values of an array are valid UTF-8."""
    import pyarrow as pa

    try:
        result.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _present(lengths: Longs) -> Any:
    """Return a validity bitmap: one bit per length, set if it is larger than 0."""
    import pyarrow.compute as pc

    return pc.greater(longs(lengths), 0).buffers()[1]
