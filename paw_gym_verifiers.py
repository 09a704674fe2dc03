"""Where verifiers finds our environments: ``vf-eval paw_gym_verifiers``. See paw_gym.adapters.verifiers."""

from paw_gym.adapters.verifiers import PawEnv, PawTaskset

__all__ = ["PawEnv", "PawTaskset"]
