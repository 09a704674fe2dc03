"""Policy training with world-model co-training (PaW) on top of `paw_gym`.

Data flows one way: episodes become token batches with masks (`tokens`, `rollout`), pure functions
turn them into advantages (`advantages`), world-model weights (`world_model`) and one loss
(`objective`), and an engine (`engines`) takes the optimiser steps. Importing this package is cheap:
torch is loaded by the submodules that need it.
"""
