"""Tools for tests, ours and our users': virtual time, channels and files in memory, real processes,
real Java.
"""
