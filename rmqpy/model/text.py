"""Counts, sizes, times, and durations in a readable form."""

from __future__ import annotations

from datetime import datetime


def format_bytes(count: int) -> str:
    """Return a size in the form of Java's tools: ``512 B``, ``1.5 KiB``."""
    if count < 1024:
        return f"{count} B"
    step = min((count.bit_length() - 1) // 10, len("KMGTPE"))
    return f"{count / 1024**step:.1f} {'KMGTPE'[step - 1]}iB"


def format_duration(seconds: float) -> str:
    """Return a duration with its two largest units: ``59 s``, ``4 min 3 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def time_text(timestamp_ms: int) -> str:
    """Return a time of this host's time zone to the second, or the number if it is no time."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
        return moment.isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def count_text(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 file``, ``3 files``, ``2 entries``.

    ``many`` is the form for several where that of ``one`` does not follow from its end, as in
    ``count_text(n, "message is", "messages are")``.
    """
    if count == 1:
        return f"1 {one}"
    if not many:
        ends_in_ies = one[-1] == "y" and one[-2] not in "aeiou"
        many = f"{one[:-1]}ies" if ends_in_ies else f"{one}s"
    return f"{count} {many}"
