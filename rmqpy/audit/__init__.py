"""What a store directory is and what is wrong with it, found without changing it.

Sub-packages, top to bottom; each imports only from those below it:

============ =================================================================
``replicas`` several stores: manifests, comparison, certificates, repair
``checks``   the full audit: messages, queues, keys, over threads
``facts``    what a store is, told from its directory and the ends of its logs
``scan``     ranges of log files, damage, and the closed list of findings
============ =================================================================

Everything reads through a :class:`rmqpy.model.files.FileSystem`, opens files read-only, takes no
lock and creates nothing; ``replicas.repair`` alone changes files, and only when asked to. Start
reading in :mod:`rmqpy.audit.facts.facts`.
"""
