"""A group as one file, ``group.toml``, and the state in which the group is.

``group_file`` reads and writes the file, ``proposal`` derives it from the brokers' own
configuration, ``contradictions`` compares the two later.
"""
