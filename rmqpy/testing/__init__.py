"""Tools for the tests of rmqpy and of its users: virtual time, channels, files, and a whole broker
in memory; real processes; and real Java.
"""
