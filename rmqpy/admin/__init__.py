"""Administration: what operators request from name servers and brokers.

=============  ==========================================================
``api``        typed calls, one per request code
``output``     results of commands: text as mqadmin prints it, or JSON
``command``    the form of a command: name, options, action
``commands``   the commands of mqadmin 4.9.7, and our own
=============  ==========================================================

This room knows the wire and the client, never the inside of a broker.
"""
