"""Several stores: their manifests, their differences, and certificates of their equality.

May import ``checks`` and below. Start reading in :mod:`~rmqpy.audit.replicas.certificate`.
"""
