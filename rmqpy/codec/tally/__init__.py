"""The kernel of audits: every frame of a range of a log file, checked and counted in its queue.

``kernel`` is the Python version and describes the result, ``backend`` chooses between it and C.
A broker never imports this package.
"""
