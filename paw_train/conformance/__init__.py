"""Conformance of agent trainers: one recorded batch, known-good losses and gradients, and planted faults.

A trainer implements ``protocol.Trainer``; ``suite.run`` compares what it computes on the recording with
values from an independent float64 implementation (``equations``), unchanged and with each fault planted.
"""
