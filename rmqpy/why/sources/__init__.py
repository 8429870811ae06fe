"""Where facts come from: a store directory, a running broker, the process of a broker.

May import ``answer`` and ``message_id``.
"""
