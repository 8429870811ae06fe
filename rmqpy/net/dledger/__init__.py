"""The driver of a DLedger member: carries out what :mod:`rmqpy.dledger` decides.

Owns the connections to peers and the order of writes, sends and answers. May import ``net.server``
and the modules of ``rmqpy.net``. Start reading in :mod:`~rmqpy.net.dledger.driver`.
"""
