"""The consensus core: plain state machines that own no socket, file, clock or dice.

The caller carries out what :class:`rmqpy.dledger.node.Ready` says, in its order, then goes on with
``tick``, ``step`` or ``propose``. ``net.dledger_driver`` is that caller.
"""
