"""The I/O edge: sockets, the event loop, threads and signals. It makes no protocol decisions.

=================== =================================================================
``dledger``, ``ha`` drivers that carry out the actions of the protocol cores
``server``          listening, connections, and the feed of the fast path
``client``          requests to other servers
``pending_replies`` replies that wait for watermarks
``connection``      one accepted connection: frames in, replies out, back-pressure
``loop``            the scheduler on asyncio or uvloop
=================== =================================================================

A module imports only modules further down this list. Start reading in
:mod:`rmqpy.net.server.server`.
"""
