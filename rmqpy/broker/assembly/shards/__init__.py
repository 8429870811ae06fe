"""Several broker names of one configuration, each in a process of its own, below one supervisor."""
