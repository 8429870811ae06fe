"""The Python side of the C core, which answers sends and pulls for a whole receive buffer.

Owns the decision of which frames C may answer and the tables that C reads. May import
``processors`` and everything below it; only this package and :mod:`rmqpy.codec.backend` touch the C
binding. Start reading in :mod:`~rmqpy.broker.fastpath.engine`; the rules are in
docs/explanation/fast-path.md.
"""
