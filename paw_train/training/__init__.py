"""Changes of the weights: warm start, updates, checkpoints, and the two engines.

``local`` is one process, CPU or one GPU; ``openrlhf`` a Ray cluster.
"""
