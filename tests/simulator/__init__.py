"""A deterministic cluster of whole brokers: one seed, virtual time (docs/reference/simulator.md).

``World(plan_of(seed)).run()`` runs one; ``python -m simulator`` runs many.
"""
