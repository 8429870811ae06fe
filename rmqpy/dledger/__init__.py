"""The consensus core: plain state machines that own no socket, file, clock or dice.

===============  =======================================================================
``node``         one member: ``step``, ``tick``, ``propose`` in, ``Ready`` out
``member``       what its parts share: role, term, vote, settings
``election``     votes, verdicts, the candidate
``heartbeat``    the leader's beats, the follower's patience
``replication``  the leader's side: a dispatcher a follower, the quorum
``follower``     the other side: pushes checked, ordered, stored
``transfer``     leadership handed over
``serving``      requests of DLedger's own clients
``entry_log``    the ledger as the core sees it
``outbox``       what is to be done, collected into a ``Ready``
``messages``     requests and responses as values; ``wire`` has their bytes
``quorum``       the arithmetic of majorities
``handshake``    what rmqpy members tell each other first
===============  =======================================================================

One turn of the caller (``net.dledger_driver`` on sockets and files, ``testing.cluster_of_nodes`` in
virtual time):

1. write what the turn's puts have staged; the log reports ``Stored``;
2. ``step(Received(ticket, decode_request(…)))`` for each request that came in, ``Answered`` for
   each answer, failure or timeout; ``tick(now_ms)`` when it is due;
3. ``take_ready()`` until it is None, and carry out each Ready in the order of its fields: hard
   state to disk and synced; entries dropped, then written; messages sent, all to one member in one
   write; the committed index told to the readers, the role to the broker; the marker appended;
4. sync when it is due, and step ``Synced(end.index, end.term)`` with the end as it was when the
   sync began.
"""
