"""A name server and brokers inside one process, for tests: ``rmqpy dev`` and
:class:`rmqpy.testing.Broker`.

Each server has a thread and an event loop of its own, so that a program and its broker do not share
a loop, and a server can be paused or killed like a process. Faults and the clock are controlled
with commands (:mod:`rmqpy.testing.dev.commands`), which are the same in process, on stdin, and over
HTTP.
"""
