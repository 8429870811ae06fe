"""Configuration files of brokers and name servers: every key of Java is read, checked, printed.

The tables of keys (``broker``, ``store``, ``dledger``, ``remoting``, ``security``) are the only
place where a key is spelled. May import ``acl`` and below. Start reading in
:mod:`~rmqpy.config.loading`.
"""
