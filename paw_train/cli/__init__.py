"""The ``paw`` program, one file a command; ``program`` puts them together."""
