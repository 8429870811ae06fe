"""Collect the facts of each question from a source. May import ``questions`` and ``sources``."""
