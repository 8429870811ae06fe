"""Byte counts and durations in a readable form."""

from __future__ import annotations


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
