"""Stores that are not on a disk of this machine: their names, sizes, and byte ranges are read, and
nothing is written.
"""
