"""The consensus core: plain state machines that own no socket, file, clock, or source of
randomness.

===============  =======================================================================
``node``         one member: ``step``, ``tick``, ``propose`` in, ``Ready`` out
``state``        roles, hard state, and the end of a log: the values that every part uses
``member``       the state that the parts share: role, term, vote, settings
``election``     votes, verdicts, the candidate
``heartbeat``    the leader's heartbeats, the follower's timeout
``replication``  the leader's side: one dispatcher per follower, the quorum
``follower``     the follower's side: pushes are checked, ordered, and stored
``transfer``     transfer of leadership
``serving``      requests of DLedger's own clients
``entry_log``    the interface of the ledger that the core uses
``outbox``       actions for the caller, collected into a ``Ready``
``protocol``     requests and responses as values, and their bytes
``quorum``       the arithmetic of majorities
``handshake``    the introduction that two rmqpy members exchange first
===============  =======================================================================

One turn of the caller (``net.dledger.driver`` on sockets and files, ``tests/simulator`` in
virtual time):

1. write the entries that the puts of the turn have staged; the log reports ``Stored``;
2. ``step(Received(ticket, decode_request(…)))`` for each incoming request, ``Answered`` for
   each answer, failure or timeout; ``tick(now_ms)`` when it is due;
3. ``take_ready()`` until it is None, and carry out each Ready in the order of its fields: hard
   state to disk and synced; entries dropped, then written; messages sent, all to one member in one
   write; the committed index passed to the readers, the role to the broker; the marker appended;
4. sync when it is due, and step ``Synced(end.index, end.term)`` with the end at the time the
   sync started.
"""
