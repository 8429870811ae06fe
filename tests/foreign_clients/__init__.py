"""RocketMQ clients that others wrote, from the registries of their languages.

=========  =====================================================  ===========================
language   client                                                 needs
=========  =====================================================  ===========================
Java       org.apache.rocketmq:rocketmq-client, 4.2 to 5.x        ``java``, ``javac``, ``mvn``
Spring     org.apache.rocketmq:rocketmq-spring-boot-starter       the same
Go         github.com/apache/rocketmq-client-go/v2                ``go``
Node       ali-ons                                                ``node``, ``npm``
Rust       rocketmq-client-rust                                   ``cargo``
C++        rocketmq-client-cpp in PyPI's ``rocketmq``             Linux on x86-64, ``pip``
Python     rocketmq3-py-client, with Java's client 3.2.6           the same, and as Java
=========  =====================================================  ===========================

Each is a :class:`rmqpy.testing.java.Probe` with the commands ``send`` and ``consume``, and most
have ``transact``. They are cached below ``RMQPY_CLIENTS_CACHE`` or ``~/.cache/rmqpy/clients``.
"""

from foreign_clients.clients import CLIENTS, ForeignClient, cpp_body
from foreign_clients.installing import ClientUnavailableError

__all__ = ["CLIENTS", "ClientUnavailableError", "ForeignClient", "cpp_body"]
