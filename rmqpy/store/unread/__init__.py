"""What RocketMQ 5.x may keep in a store and nothing in rmqpy delivers: :mod:`.data` is the list.

The broker, the audits, and the tools share it. The other modules read one feature each.
"""
