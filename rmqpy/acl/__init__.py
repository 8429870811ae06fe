"""Java's access control 1.0: ``plain_acl.yml``, accounts, address patterns, signatures.

Pure, except for ``watcher``, which rereads the files through a file system that it is given. May
import ``remoting`` and ``model``. Brokers and name servers keep their own tables of what each
request demands. Start reading in :mod:`~rmqpy.acl.signature`.
"""
