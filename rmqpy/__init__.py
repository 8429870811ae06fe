"""rmqpy: a RocketMQ-compatible name server, broker and client in Python."""

__version__ = "0.1.0"
