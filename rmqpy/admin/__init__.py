"""Administration: the requests of operators to name servers and brokers.

=============  ==========================================================
``api``        typed calls, one per request code
``output``     results of commands: text as mqadmin prints it, or JSON
``command``    the form of a command: name, options, action
``commands``   the commands of mqadmin 4.9.7, and our own
=============  ==========================================================

This package uses the wire protocol and the client, never the internals of a broker.
"""
