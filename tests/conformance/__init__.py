"""Conformance: the same requests and commands to a Java server and to ours, answers compared.

:mod:`.wire` sends requests and records the answers, the scenarios define what is sent in which
order, :mod:`.compare` finds differences, :mod:`.page` writes docs/reference/conformance.md from the
evidence.
"""
