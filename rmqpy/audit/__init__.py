"""Find out what a store directory is and what is wrong with it, without changing it.

Sub-packages, top to bottom; each imports only from those below it:

============ =================================================================
``replicas`` several stores: manifests, comparison, certificates, repair
``checks``   the full audit: messages, queues, keys, in threads
``facts``    what a store is, from its directory and the ends of its logs
``scan``     ranges of log files, damage, and the closed list of findings
============ =================================================================

Everything reads through a :class:`rmqpy.model.files.FileSystem`, opens files read-only, takes no
lock, and creates nothing; only ``replicas.repair`` changes files, and only on request. Start
reading in :mod:`rmqpy.audit.facts.facts`.
"""
