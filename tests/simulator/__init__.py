"""A deterministic simulator of whole clusters in virtual time (docs/reference/simulator.md).

``BrokerCluster(plan_of(seed)).run()`` runs one seed with brokers, ``NodeCluster(node_plan(seed))``
one with bare DLedger nodes; ``tox -e sim`` runs many.
"""
