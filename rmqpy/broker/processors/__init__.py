"""The request processors: one class for each kind of request, as in Java's processor package.

Each receives the tables and services that it uses through its constructor and lists the request
codes that it answers in ``handlers``. May import ``services``, ``state`` and below. Start reading
in :mod:`~rmqpy.broker.processors.send`. Requests of operators are in ``processors.admin``.
"""
