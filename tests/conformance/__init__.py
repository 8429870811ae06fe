"""The same requests and commands to a Java server and to ours, and what came back side by side.

:mod:`.wire` asks and writes down, the stories say what is asked in which order, :mod:`.compare`
tells differences, :mod:`.page` makes docs/reference/conformance.md of what was seen.
"""
