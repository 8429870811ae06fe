"""The store: logs, their derived files, recovery. Synchronous; knows no loop and no socket.

All file access goes through :mod:`rmqpy.store.files`; the clock is an argument. See
docs/store-format.md.
"""
