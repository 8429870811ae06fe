"""Encoding and decoding of records, entries and units. All functions are pure.

``layout`` names every number of the formats. ``backend`` exports the functions that exist both in C
and in Python; ``native`` contains the C versions. ``tally`` is the kernel of audits.
"""
