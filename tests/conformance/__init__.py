"""Conformance: the answers of a Java server and of rmqpy to the same requests and commands.

:mod:`.wire` sends requests and records the answers, the scenarios define what is sent in which
order, :mod:`.compare` finds differences, and :mod:`.page` writes docs/reference/conformance.md
from the evidence.
"""
