"""The wire protocol as plain objects: frames, commands, headers, and bodies.

Nothing here uses a socket or a clock.
"""
