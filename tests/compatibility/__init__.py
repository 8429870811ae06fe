"""Other people's judges: Apache's integration tests and the clients of other languages, against
servers of rmqpy and of Java. ``python -m compatibility`` runs them and writes the card,
docs/reference/compatibility.md.
"""
