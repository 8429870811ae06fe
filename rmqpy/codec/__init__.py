"""The bytes of records, entries and units, encoded and decoded. Pure: bytes in, values out.

``layout`` names every number of the formats, ``backend`` exports the functions that exist both in C
and in Python: ``native`` holds the C versions. ``tally`` is the kernel of audits.
"""
