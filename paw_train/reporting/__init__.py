"""Runs in the terminal, the report of one run, and the comparison of many."""
