"""Administration: what operators ask of name servers and brokers.

=============  ==========================================================
``api``        typed calls, one a request code
``outcome``    what a command found out: text as mqadmin prints it, or JSON
``command``    what a command is: name, options, what it does
``commands``   the commands of mqadmin 4.9.7, and ours
=============  ==========================================================

Knows the wire and the client, never the inside of a broker.
"""
