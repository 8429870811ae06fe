"""Configuration files of brokers and name servers, with support for every key of Java.

The tables of keys (``broker``, ``store``, ``dledger``, ``remoting``, ``security``) are the only
place that contains the names of keys. The package may import ``acl`` and below. Start reading in
:mod:`~rmqpy.config.loading`.
"""
