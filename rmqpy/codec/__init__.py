"""Bytes of records, entries and units, in both directions. Pure: bytes in, values out.

``layout`` names every number of the formats, ``chosen`` exports the functions that exist twice (C
and Python).
"""
