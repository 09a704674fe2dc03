"""The ALFWorld environment: real or procedural games behind either engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv
from paw_gym.envs.alfworld.experts import SweepExpert
from paw_gym.envs.alfworld.games import load_compiled, load_game, shared_index
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NOTHING_HAPPENS, Engine, NativeEngine, NativeState
from paw_gym.envs.alfworld.procedural import generate
from paw_gym.envs.alfworld.procedural.plan import solve
from paw_gym.generated import require_count, shared_sets
from paw_gym.internals.naming import require_choice

ENGINES = ("native", "textworld")
PROCEDURAL_TASKS = {"train": 30_000, "valid_seen": 1_200, "valid_unseen": 1_200}
"""games in each procedural split; any number could be made"""
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_TASK = "Your task is to:"


class ALFWorldEnv(TextEnv):
    """Household tasks in text: find things, heat, cool, clean and place them.

    ## Description
    ALFWorld (Shridhar et al. 2021) on the tasks of ALFRED. A room holds receptacles (cabinets,
    drawers, a fridge, ...) with objects in them; the agent walks, opens, takes, treats and puts. Six
    task types: ``pick_and_place_simple``, ``look_at_obj_in_light``, ``pick_clean_then_place_in_recep``,
    ``pick_heat_then_place_in_recep``, ``pick_cool_then_place_in_recep``, ``pick_two_obj_and_place``.
    Without ``data_dir`` games are procedural: made by seed from the rooms and affordances of ALFWorld,
    each solvable, nothing to download. With ``data_dir`` they are the official ones.

    ## Action Space
    Commands such as ``go to cabinet 1``, ``open cabinet 1``, ``take mug 1 from cabinet 1``,
    ``heat mug 1 with microwave 1``, ``put mug 1 in/on desk 1`` (``move mug 1 to desk 1`` in games with
    the newer grammar), ``use desklamp 1``, ``look``, ``inventory``. ``info["admissible_actions"]``
    lists what is accepted; anything else answers "Nothing happens."

    ## Observation Space
    The text that ALFWorld prints, byte for byte.

    ## Rewards
    1 when the goal is reached, else 0. Behind ``AgentInterface``: 10 on success, -0.1 for an invalid
    response.

    ## Starting State
    In the middle of the room, hands empty. ``seed`` or ``options`` choose the game.

    ## Episode End
    Terminated when the goal is reached; truncated after ``max_steps`` (50).

    ## Arguments
    ``split``: ``train``, ``valid_seen`` (rooms of train, other placements) or ``valid_unseen``
    (rooms that train does not have). ``data_dir``: the folder that holds ``train/``, ``valid_seen/``,
    ... or ``json_2.1.1/``. ``engine``: ``native``, or ``textworld`` for the original one (extra
    ``alfworld``). ``grammar`` (procedural): ``put`` or ``move``. ``variation`` (procedural): ``real``
    rooms, ``modified`` ones, or ``mixed``. ``num_tasks`` (procedural): size of the split.
    """

    agent = AgentDefaults(template="alfworld", success_reward=10.0)

    def __init__(
        self,
        split: str = "train",
        data_dir: str | Path | None = None,
        engine: str = "native",
        max_steps: int = 50,
        grammar: str = "put",
        variation: str | None = None,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        require_choice("engine", engine, ENGINES)
        if data_dir is None:
            tasks = procedural_tasks(split, grammar, variation, num_tasks)
        else:
            tasks = official_tasks(split, Path(data_dir))
        super().__init__(tasks, max_steps, render_mode)
        self.engine_name = engine
        self.forkable = engine == "native"
        self.engine: Engine

    def _start(self, task: Task) -> Outcome:
        self.engine = self._new_engine(task)
        return self._outcome(self.engine.reset(), False)

    def _new_engine(self, task: Task) -> Engine:
        if self.engine_name == "native":
            return NativeEngine(task.data.compiled())
        from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine

        return TextWorldEngine(task.data.json())

    def _act(self, action: str) -> Outcome:
        return self._outcome(*self.engine.step(action))

    def _outcome(self, observation: str, won: bool) -> Outcome:
        commands = self.engine.admissible_commands()
        return Outcome(
            observation,
            reward=float(won),
            terminated=won,
            success=won,
            action_is_valid=observation != NOTHING_HAPPENS,
            admissible_actions=[command for command in commands if command != "help"],
        )

    def _get_state(self) -> Any:
        return self.engine.save_state()

    def _set_state(self, state: Any) -> None:
        self.engine = self._new_engine(self.task)
        self.engine.reset()
        self.engine.restore_state(state)

    def prompt_observation(self, observation: str) -> str:
        """The text without the banner and the task, which has its own slot in the prompt."""
        if not observation.startswith(_BANNER):
            return observation
        return observation.removeprefix(_BANNER).partition(_TASK)[0].strip()

    def reference_solution(self) -> list[str]:
        """A short solution by an expert that sees the whole state."""
        native = NativeEngine(self.task.data.compiled())
        state = self.engine.save_state()
        if isinstance(state, NativeState):
            native.restore_state(state)
        else:  # the original cannot be inspected
            for command in state.commands:  # type: ignore[attr-defined]
                native.step(command)
        return solve(native)

    def expert(self) -> Callable[[], str]:
        """An expert that acts on the text alone, as a policy must: the source of demonstrations.

        It reads an episode from its start: after the first action, ``RuntimeError``.
        """
        if self._steps:
            raise RuntimeError(
                f"The expert reads an episode from its start, but {self._steps} actions were taken: call "
                "`expert()` right after `reset()`, or `reference_solution()` at any time."
            )
        expert = SweepExpert()
        expert.reset(self._last.observation)

        def act() -> str:
            return expert.act(self._last.observation, self._last.admissible_actions or [])

        return act


class ProceduralGame(NamedTuple):
    """A procedural game, made when it is needed: the arguments of ``generate_game``."""

    split: str
    task_type: str
    seed: int
    grammar: str
    variation: str | None

    def json(self) -> dict[str, Any]:
        """The content of its ``game.tw-pddl``."""
        return generate.generate_game(*self)  # type: ignore[arg-type]

    @lru_cache(maxsize=1024)  # noqa: B019 - equal games are one
    def compiled(self) -> CompiledGame:
        """The game as the native engine plays it; recent ones are kept."""
        return CompiledGame.from_json(self.json())


@shared_sets(maxsize=64)
def procedural_tasks(
    split: str, grammar: str = "put", variation: str | None = None, num_tasks: int | None = None
) -> TaskSet:
    """The tasks of a procedural split, task types taking turns; other arguments as for ``ALFWorldEnv``."""
    require_choice("split", split, generate.SPLITS)
    require_choice("grammar", grammar, ("put", "move"))
    require_count("num_tasks", num_tasks)
    chosen = generate.variation_of(split, variation)  # type: ignore[arg-type]
    count = PROCEDURAL_TASKS[split] if num_tasks is None else num_tasks
    types = generate.TASK_TYPES
    ids = [f"procedural/{split}/{types[i % len(types)]}/{i:05d}" for i in range(count)]

    def load(task_id: str) -> Task:
        _, _, task_type, number = task_id.split("/")
        game = ProceduralGame(split, task_type, int(number), grammar, chosen)
        return Task(task_id, game.compiled().task.strip(), task_type, game)

    parts = ["alfworld-procedural", "1", split, grammar, str(variation), str(count)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return TaskSet(ids, load, digest, split)


class OfficialGame(NamedTuple):
    """A game file of the official layout."""

    path: Path

    def json(self) -> dict[str, Any]:
        return load_game(self.path)

    def compiled(self) -> CompiledGame:
        """The game as the native engine plays it; recent ones are kept."""
        return load_compiled(self.path)


def official_tasks(split: str, data_dir: Path) -> TaskSet:
    """The playable games of a split of the official data."""
    index = shared_index(data_dir, split)

    def load(task_id: str) -> Task:
        game, path = index.games[task_id], index.path(task_id)
        return Task(task_id, game.instruction.strip(), game.task_type, OfficialGame(path))

    return TaskSet(list(index.games), load, index.fingerprint, split)
