"""Helpers that the tests of several rooms share, one module per room."""
