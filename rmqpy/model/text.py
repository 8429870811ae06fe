"""Byte counts in a readable form."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Return a size in the form of Java's tools: ``512 B``, ``1.5 KiB``."""
    if count < 1024:
        return f"{count} B"
    step = min((count.bit_length() - 1) // 10, len("KMGTPE"))
    return f"{count / 1024**step:.1f} {'KMGTPE'[step - 1]}iB"
