"""The commands of ``paw``, one module for each."""
