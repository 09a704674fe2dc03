"""``pickle`` and ``copy.deepcopy`` of environments: constructed with the same arguments, then restored.

An environment may hold what cannot be copied (a game engine, a generator, a connection). Its
arguments and what ``save_state`` returns are small, and enough to go on exactly where it was.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paw_gym.core import TextEnv

_KEPT = ("_np_random", "_np_random_seed", "observation_space", "action_space")
"""attributes that go along beside the episode: the generators, and those of the spaces"""


def copied(env: TextEnv) -> TextEnv:
    """An independent copy, in mid-episode too. It shares the arguments that the original was made with."""
    make, args, kwargs = env._made_with
    return _restored(make, args, kwargs, _snapshot(env))


def reduced(env: TextEnv) -> tuple[Callable[..., TextEnv], tuple[Any, ...]]:
    """The form in which ``pickle`` stores an environment: how to construct it again, and its state."""
    contents = (*env._made_with, _snapshot(env))
    try:
        pickle.dumps(
            contents
        )  # only to name the environment in the error; pickle writes them again
    except Exception as error:  # an argument or a state may be anything
        raise TypeError(
            f"{env.env_id} cannot be pickled: {error}. Its arguments and what _get_state returns must "
            "be picklable (functions and classes: defined at the top of a module)."
        ) from error
    return _restored, contents


def _snapshot(env: TextEnv) -> dict[str, Any]:
    try:
        episode = None if env._task is None else env.save_state()
        kept = {name: copy.deepcopy(getattr(env, name)) for name in _KEPT if hasattr(env, name)}
    except Exception as error:  # an author's save_state may raise anything
        raise TypeError(
            f"{env.env_id} cannot be copied or pickled: its save_state failed ({error})"
        ) from error
    return {"episode": episode, "kept": kept, "spec": env.spec, "progress": env.progress}


def _restored(
    make: Callable[..., TextEnv],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    snapshot: dict[str, Any],
) -> TextEnv:
    env = make(*args, **kwargs)
    env.spec = snapshot["spec"]
    if snapshot["progress"] is not None:
        env.set_progress(snapshot["progress"])
    for name, value in snapshot["kept"].items():
        setattr(env, name, value)
    if snapshot["episode"] is not None:
        try:
            env.restore_state(snapshot["episode"])
        except Exception as error:  # an author's restore_state may raise anything
            raise TypeError(
                f"{env.env_id} cannot be copied or pickled: its restore_state failed ({error})."
            ) from error
    return env
