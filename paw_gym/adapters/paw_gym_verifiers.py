"""The plug-in for verifiers, installed as a top-level module: ``vf-eval paw_gym_verifiers``."""

from paw_gym.adapters.verifiers import PawEnv, PawTaskset

__all__ = ["PawEnv", "PawTaskset"]
