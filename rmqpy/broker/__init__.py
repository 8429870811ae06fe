"""The broker: its request processors, tables and services, and the code that connects them.

Sub-packages, top to bottom; each imports only from those below it:

=============== ======================================================================
``assembly``    builds a broker from its settings: the composition root, the process
``fastpath``    drives the C core, which answers common sends and pulls
``processors``  one class for each kind of request; ``admin`` holds those of operators
``replication`` followers, the metadata of a master, role changes
``services``    work between requests: flush, schedule, transaction checks, retention
``state``       the tables: topics, groups, offsets, clients, statistics
``filter``      SQL92 expressions and tags
``base``        the parts that all of them share: context, store API, scheduling
=============== ======================================================================

Nothing here opens a socket, starts a thread or reads the system clock. Start reading in
:mod:`rmqpy.broker.assembly.server`.
"""
