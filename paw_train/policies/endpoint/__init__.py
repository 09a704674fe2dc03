"""A policy behind an OpenAI-compatible endpoint: what a reply says, what a failure means, what may be spent.

Needs no torch.
"""
