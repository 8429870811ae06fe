"""The kernel of audits: every frame of a range of a log file, checked and counted in its queue.

``kernel`` is the Python version and documents the result; ``backend`` chooses between it and the C
version. A broker never imports this package.
"""
