"""Several stores: their manifests, where they differ, and certificates that they do not.

May import ``checks`` and below. Start reading in :mod:`~rmqpy.audit.replicas.certificate`.
"""
