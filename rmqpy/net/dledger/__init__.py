"""The driver of a DLedger member, which carries out the decisions of :mod:`rmqpy.dledger`.

It owns the connections to peers and the order of writes, sends and answers. It may import
``net.server`` and the modules of ``rmqpy.net``. Start reading in :mod:`~rmqpy.net.dledger.driver`.
"""
