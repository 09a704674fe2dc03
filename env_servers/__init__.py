"""Services around the environments, which ``paw serve`` starts.

They import ``paw_gym`` only, never ``paw_train``.
"""
