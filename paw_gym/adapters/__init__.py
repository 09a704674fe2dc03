"""Our environments in other frameworks. Each module needs its framework's package.

``openenv``: an OpenEnv server of our environments. ``skyrl``: our environments under skyrl-gym's
interface. ``verifiers``: the same for verifiers. ``trl``: our environments as tools of TRL's GRPO
trainer; needs no TRL itself. ``verl_agent``: our environments as verl-agent's environment manager;
needs no verl-agent. ``gymnasium``: an environment of Gymnasium with discrete actions as one of ours.
"""
