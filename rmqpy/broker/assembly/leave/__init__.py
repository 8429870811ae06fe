"""The leave of a running DLedger group: the classic slave that follows it takes over.

===========  =================================================================================
``slave``    the slave carries out what ``rmqpy.broker.replication.leave_protocol`` decides
``member``   what a member does: freeze, vote, leave, or undo
``relay``    the requests of clients that still come to a member that has left
``record``   what a start reads in the journal, and refuses
===========  =================================================================================
"""
