"""Logs of message records: the interface, the classic and the DLedger log, the joined one, and how
a directory is opened.
"""
