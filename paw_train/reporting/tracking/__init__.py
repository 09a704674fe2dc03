"""Experiment tracking: the measurements and results of a run, sent to the programs that ``tracking`` names.

A tracker follows the run's files: ``metrics.jsonl`` is what counts, and ``tracking.json`` holds how much of
it each tracker has. ``registry`` names the trackers, ``follow`` feeds them, and each has a module.
"""
