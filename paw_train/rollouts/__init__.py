"""A policy plays a pool of environments; episodes become token rows with masks.

``policy`` is the protocol that every policy in ``paw_train.policies`` follows.
"""
