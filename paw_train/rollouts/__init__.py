"""Rollouts of a policy in a pool of environments, as episodes and as token rows with masks.

``policy`` is the protocol that every policy in ``paw_train.policies`` follows.
"""
