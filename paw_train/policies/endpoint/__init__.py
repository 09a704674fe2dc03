"""A policy behind an OpenAI-compatible endpoint: its replies, failures and budgets.

Needs no torch.
"""
