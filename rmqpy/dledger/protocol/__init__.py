"""The messages between members: values in ``messages``, their bytes in ``json_bodies``, and a
direct path for pushes of entries in ``push_text``.

The package may import ``codec``, ``model`` and the leaf modules of :mod:`rmqpy.dledger` (entries,
state). Start reading with ``messages``.
"""
