"""Our environments in other frameworks, and theirs here. Each module needs its framework's package.

``gymnasium``: an environment of Gymnasium with discrete actions as text.
``openenv``: an OpenEnv server of our environments, and an OpenEnv client as an environment of ours.
``skyrl``: our environments under skyrl-gym's interface. ``verifiers``: the same for verifiers. ``trl``: our
environments as tools of TRL's GRPO trainer; needs no TRL itself. ``verl_agent``: our environments as
verl-agent's environment manager; needs no verl-agent. ``textarena``: a game of TextArena for one player.
``families`` makes the tasks of environments that come from elsewhere.
"""
