"""The rim: sockets, the loop, threads and signals, and nothing that decides anything.

``loop`` gives services their clock and scheduler, ``server`` and ``client`` carry frames between
sockets and the handlers of ``remoting.channel``.
"""
