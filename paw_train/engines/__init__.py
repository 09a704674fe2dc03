"""Engines: what runs the training loop. ``local`` is one process, CPU or one GPU."""
