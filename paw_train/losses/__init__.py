"""The terms that are minimised: policy surrogate, KL and world-model losses, as pure functions on tensors.

Both engines compute their loss here, so a laptop and a cluster learn the same thing.
"""
