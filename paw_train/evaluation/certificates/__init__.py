"""Certificates of results: recorded actions that anyone can replay, with what they are claimed to lead to.

``episodes`` is what is recorded, ``trajectories`` reads other trainers' files, ``replay`` compares an
episode with the environment, ``claims`` states what follows from the episodes, ``file`` and ``keys`` hold
and sign it; ``writing`` and ``checking`` are what ``paw certify`` does.
"""
