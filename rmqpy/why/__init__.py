"""Answers to the questions that operators ask: why is a file not deleted, why was there an
election, why is a start slow, why was a message not received, and where is a message.

An answer is computed from facts without I/O (``questions``); the facts come from a store directory,
which is only read, or from a running broker (``sources``, ``gathering``).

May import ``admin`` and the layers below it.
"""
