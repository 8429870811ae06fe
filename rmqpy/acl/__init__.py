"""Java's access control 1.0: ``plain_acl.yml``, accounts, address patterns, and signatures.

All modules are pure, except for ``watcher``, which rereads the files through the file system that
is passed to it. The package may import ``remoting`` and ``model``. Brokers and name servers have
their own tables of the permissions that each request needs. Start reading in
:mod:`~rmqpy.acl.signature`.
"""
