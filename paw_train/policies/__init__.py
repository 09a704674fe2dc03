"""Policies: what turns contexts into sampled responses."""
