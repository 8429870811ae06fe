"""The kernel of audits: every frame of a range of a log file, checked and counted in its queue.

``kernel`` is the Python version and documents the result, ``native`` the C version; ``backend``
chooses between them. A broker never imports this package.
"""
