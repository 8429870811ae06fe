"""What the verbs of ``rmqpy upgrade`` share: options, the replicas and the group given, output, and
carrying out a plan.
"""
