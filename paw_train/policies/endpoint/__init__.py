"""A policy behind an OpenAI-compatible endpoint. Needs no torch."""
