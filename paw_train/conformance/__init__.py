"""Conformance of agent trainers: one recorded batch, known-good losses and gradients, and planted faults.

A trainer implements ``protocol.Trainer``; ``suite.run`` compares what it computes on the recording with
values of an independent float64 implementation (``equations``), as it is and with each fault planted.
"""
