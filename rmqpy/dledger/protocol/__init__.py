"""The messages between members: their values (``messages``), their bytes (``json_bodies``), and a
direct path for pushes of entries (``push_text``).

The package may import ``codec``, ``model`` and the leaf modules of :mod:`rmqpy.dledger` (entries,
state). Start reading in ``messages``.
"""
