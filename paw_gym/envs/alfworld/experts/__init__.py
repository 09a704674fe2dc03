"""Experts: one that knows everything, one that acts on the text alone."""
