"""Work that a broker does between requests: flush, held pulls, schedule, checks, retention.

Each service is driven by the scheduler that it is given. May import ``state`` and below, and no
processor. Start reading in :mod:`~rmqpy.broker.services.pull_hold`.
"""
