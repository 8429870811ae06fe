"""The content of each screen, computed from facts without I/O."""
