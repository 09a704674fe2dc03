"""Gymnasium's toy worlds as text: frozen lakes on random maps, a taxi, a cliff, and blackjack.

Dynamics and rewards are Gymnasium's own (``gymnasium.envs.toy_text``): the transition tables of its
environments, and the rules of its card game.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.toy_text import blackjack
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map
from gymnasium.envs.toy_text.taxi import MAP, TaxiEnv

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv, split_of_key
from paw_gym.generated import SPLITS, TASKS, require_count, require_in, shared_sets
from paw_gym.internals.naming import require_choice

GAMES = ("frozen_lake", "taxi", "cliff_walking", "blackjack")
SIZES = range(4, 11)
GENERATOR = 1
"""raised when other tasks come from the same arguments"""
_FROZEN = 0.8
"""share of a lake that is frozen, as in Gymnasium's random maps"""
_DISCOUNT = 0.99
"""factor for a success that comes a step later"""
_DECK = 48
"""cards; more than both sides can draw"""
_PLACES = ("R", "G", "Y", "B")
_DIRECTIONS = {(0, -1): "left", (1, 0): "down", (0, 1): "right", (-1, 0): "up"}


class Step(NamedTuple):
    """The effect of an action."""

    state: Any
    event: str
    reward: float = 0.0
    over: bool = False
    success: bool = False


# --- worlds with a transition table ----------------------------------------------------------------------


@dataclass(eq=False)
class TabularGame:
    """A world whose states are numbers, as in Gymnasium's table of transitions."""

    instruction: str
    """the task"""
    actions: Sequence[str]
    """every action, in Gymnasium's order"""
    transitions: InitVar[Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]]
    """Gymnasium's table"""
    show: Callable[[int], str]
    """the state as the agent sees it"""
    event: Callable[[int, str, Step], str]
    """a sentence about a step, from the state before it and the action"""
    holes: Set[int] = frozenset()
    """states in which an episode has failed"""

    def __post_init__(self, transitions: Any) -> None:
        self.table = {
            state: {
                action: [
                    (p, Step(int(after), "", float(reward), over, over and after not in self.holes))
                    for p, after, reward, over in ways
                ]
                for action, ways in zip(self.actions, by_number.values(), strict=True)
            }
            for state, by_number in transitions.items()
        }

    def useful(self, state: int) -> list[str]:
        """The actions that can change something."""
        return [
            action
            for action, ways in self.table[state].items()
            if any(step.state != state or step.over for _, step in ways)
        ]

    def step(self, state: int, action: str, rng: np.random.Generator) -> Step:
        """Samples one number, whatever the action."""
        step = self._sample(state, action, float(rng.random()))
        return step._replace(event=self.event(state, action, step))

    def _sample(self, state: int, action: str, uniform: float) -> Step:
        """As in Gymnasium, the first outcome at which the summed probability is above the number."""
        ways = self.table[state][action]
        bounds = np.cumsum([probability for probability, _ in ways])
        return ways[int(np.argmax(bounds > uniform))][1]

    def solution(self, state: int, rng: np.random.Generator, budget: int) -> list[str]:
        """Actions that succeed, by looking ahead in ``rng``; empty if none do within the budget."""
        ahead = copy.deepcopy(rng)
        layer: dict[int, list[str]] = {state: []}
        for _ in range(budget):
            uniform = float(ahead.random())
            following: dict[int, list[str]] = {}
            for now, path in layer.items():
                for action in self.useful(now):
                    step = self._sample(now, action, uniform)
                    if step.success:
                        return [*path, action]
                    if not step.over:
                        following.setdefault(step.state, [*path, action])
            layer = following
        return []

    def advice(self, state: int) -> str:
        """The action with the greatest probability of success, discounted by its steps."""
        choices = self.useful(state) or self.actions
        return max(choices, key=lambda action: _value(self.table[state][action], self._values))

    @cached_property
    def _values(self) -> dict[int, float]:
        """For each state, the discounted probability of success by the best actions (value iteration)."""
        values, change = dict.fromkeys(self.table, 0.0), 1.0
        while change > 1e-6:
            new = {s: max(_value(w, values) for w in of.values()) for s, of in self.table.items()}
            change = max(abs(new[state] - values[state]) for state in values)
            values = new
        return values


def _value(ways: Sequence[tuple[float, Step]], values: Mapping[int, float]) -> float:
    total = 0.0
    for probability, step in ways:
        later = 0.0 if step.over else _DISCOUNT * values[step.state]
        total += probability * (step.success + later)
    return total


def _with_agent(rows: Sequence[str], row: int, column: int) -> list[str]:
    shown = [*rows]
    shown[row] = f"{shown[row][:column]}@{shown[row][column + 1 :]}"
    return shown


def _grid(
    instruction: str, actions: Sequence[str], transitions: Any, rows: Sequence[str]
) -> TabularGame:
    """A board of signs on which the agent walks; the states are its cells, row by row."""
    holes = {cell for cell, sign in enumerate("".join(rows)) if sign == "H"}
    # no functions within this one: tasks can be pickled
    show, event = partial(_show_grid, rows), partial(_walk_event, len(rows[0]))
    return TabularGame(instruction, actions, transitions, show, event, holes)


def _show_grid(rows: Sequence[str], state: int) -> str:
    return "\n".join(_with_agent(rows, *divmod(state, len(rows[0]))))


def _walk_event(columns: int, before: int, action: str, step: Step) -> str:
    if step.reward < -1:  # from the start, too, where a fall changes nothing
        return "You fall off the cliff and are back at the start."
    if step.state == before:
        return "You stay where you are."
    (row, column), (row_now, column_now) = divmod(before, columns), divmod(step.state, columns)
    direction = _DIRECTIONS[row_now - row, column_now - column]
    return f"You go {direction}." if direction == action else f"You slip and go {direction}."


@lru_cache(maxsize=1024)
def frozen_lake(rows: tuple[str, ...], slippery: bool) -> TabularGame:
    """A lake of S (start), F (frozen), H (hole) and G (goal)."""
    slip = " The ice is slippery: often you go to one of the sides instead." if slippery else ""
    return _grid(
        "Walk over the frozen lake to the goal. You are @; S is the start, F frozen ice, H a hole that ends "
        f"the walk, G the goal.{slip}",
        ("left", "down", "right", "up"),
        FrozenLakeEnv(desc=list(rows), is_slippery=slippery).P,
        rows,
    )


@lru_cache(maxsize=2)
def cliff_walking(slippery: bool) -> TabularGame:
    """Gymnasium's cliff: 4 rows, 12 columns, the goal at the lower right."""
    slip = " The ground is slippery: often you go to one of the sides instead." if slippery else ""
    return _grid(
        "Walk to the goal (G) without falling off the cliff (C): whoever falls starts over at the lower "
        f"left. You are @.{slip}",
        ("up", "right", "down", "left"),
        CliffWalkingEnv(is_slippery=slippery).P,
        (*["." * 12] * 3, "S" + "C" * 10 + "G"),
    )


@lru_cache(maxsize=1)
def taxi() -> TabularGame:
    """Gymnasium's taxi: a passenger to pick up at one of four places and to drop off at another."""
    return TabularGame(
        "Drive the taxi (@) to the passenger, pick the passenger up, drive to the destination and drop the "
        "passenger off. R (upper left), G (upper right), Y (lower left) and B (lower right) are the four "
        "places; | is a wall, : is none.",
        ("south", "north", "east", "west", "pick up", "drop off"),
        TaxiEnv().P,
        _show_taxi,
        _taxi_event,
    )


def _show_taxi(state: int) -> str:
    """The map with the taxi on it, and where the passenger is and wants to go."""
    # as TaxiEnv.encode numbers the states: row, column, passenger, destination
    row, column, passenger, destination = map(int, np.unravel_index(state, (5, 5, 5, 4)))
    where = "in the taxi" if passenger == 4 else f"at {_PLACES[passenger]}"
    last = f"Passenger: {where}. Destination: {_PLACES[destination]}."
    return "\n".join([*_with_agent(MAP, row + 1, 2 * column + 1), last])


def _taxi_event(before: int, action: str, step: Step) -> str:
    if step.reward == 20:
        return "The passenger has arrived."
    if step.reward == -10:
        return "That is not possible here."
    if step.state == before:
        return "A wall is in the way."
    names = {"pick up": "The passenger gets in.", "drop off": "The passenger gets out."}
    return names.get(action, f"The taxi goes {action}.")


# --- blackjack -------------------------------------------------------------------------------------------

Hands = tuple[tuple[int, ...], tuple[int, ...]]
"""cards of player and dealer"""


@dataclass(eq=False)
class Blackjack:
    """A deal of Gymnasium's blackjack: its rules, with the cards in the order of a deck.

    Args:
        deck: cards from 1 (ace) to 10 in the order in which they are dealt, the dealer's two first.
    """

    deck: tuple[int, ...]
    instruction = (
        "Win at blackjack: come closer to 21 than the dealer, and not above it. hit takes a card, stick ends "
        "your turn; the dealer then takes cards up to 17. An ace (1) counts 11 where that is not too much."
    )
    actions = ("hit", "stick")

    @property
    def start(self) -> Hands:
        """The first two cards of both."""
        return self.deck[2:4], self.deck[:2]

    def show(self, state: Hands) -> str:
        """The dealer's other cards stay hidden until the end."""
        (player, dealer), total = state, blackjack.sum_hand(list(state[0]))
        ace = ", an ace as 11" if blackjack.usable_ace(list(player)) else ""
        return f"Your cards: {_cards(player)} ({total}{ace}). The dealer shows {dealer[0]}."

    def useful(self, state: Hands) -> list[str]:
        return list(self.actions)

    def step(self, state: Hands, action: str, rng: np.random.Generator | None) -> Step:
        """The deck decides, not ``rng``."""
        player, dealer = state
        dealt = len(player) + len(dealer)
        if action == "hit":
            player = (*player, self.deck[dealt])
            bust = blackjack.is_bust(list(player))
            event = f"You get {player[-1]}" + (" and have too much." if bust else ".")
            return Step((player, dealer), event, -1.0 if bust else 0.0, bust)
        while blackjack.sum_hand(list(dealer)) < 17:
            dealer = (*dealer, self.deck[dealt])
            dealt += 1
        reward = float(blackjack.cmp(blackjack.score(list(player)), blackjack.score(list(dealer))))
        ending = {1.0: "You win.", 0.0: "It is a draw.", -1.0: "The dealer wins."}[reward]
        event = f"The dealer has {_cards(dealer)} ({blackjack.sum_hand(list(dealer))}). {ending}"
        return Step((player, dealer), event, reward, True, reward > 0)

    def solution(self, state: Hands, rng: np.random.Generator | None, budget: int) -> list[str]:
        """Some number of hits, then stick."""
        hits: list[str] = []
        while len(hits) < budget:
            if self.step(state, "stick", rng).success:
                return [*hits, "stick"]
            step = self.step(state, "hit", rng)
            if step.over:
                break
            state, hits = step.state, [*hits, "hit"]
        return []

    def advice(self, state: Hands) -> str:
        """The best policy for these rules (Sutton and Barto 2018, figure 5.2)."""
        (player, dealer), total = state, blackjack.sum_hand(list(state[0]))
        shown = dealer[0]
        if blackjack.usable_ace(list(player)):
            enough = 19 if shown in (9, 10) else 18
        elif 4 <= shown <= 6:
            enough = 12
        else:
            enough = 13 if shown in (2, 3) else 17
        return "stick" if total >= enough else "hit"


Game = TabularGame | Blackjack


def _cards(cards: Sequence[int]) -> str:
    return ", ".join(map(str, cards))


# --- tasks -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=8192)
def _lake(split: str, number: int, size: int) -> tuple[str, ...]:
    rng = random.Random(f"frozen lake {GENERATOR}|{split}|{size}|{number}")
    while True:
        rows = tuple(generate_random_map(size, _FROZEN, rng.getrandbits(32)))
        if split_of_key("\n".join(rows), SPLITS) == split:
            return rows


def _deal(split: str, number: int) -> Blackjack:
    """A deck with which the player can win."""
    rng = random.Random(f"blackjack {GENERATOR}|{split}|{number}")
    while True:
        game = Blackjack(tuple(rng.choices([*range(1, 11), 10, 10, 10], k=_DECK)))
        wins = bool(game.solution(game.start, None, _DECK))
        if wins and split_of_key(_cards(game.deck), SPLITS) == split:
            return game


@shared_sets(maxsize=16)
def toy_tasks(game: str, split: str, size: int, slippery: bool, num_tasks: int | None) -> TaskSet:
    """The tasks of a split; ``data`` of a task is a game and its first state."""
    require_choice("game", game, GAMES)
    require_choice("split", split, SPLITS)
    require_in("size", size, SIZES)
    require_count("num_tasks", num_tasks)
    if slippery not in (False, True):  # "false" would be true
        raise ValueError(f"slippery is True or False, got {slippery!r}.")
    if slippery and game not in ("frozen_lake", "cliff_walking"):
        raise ValueError(f"slippery is for frozen_lake and cliff_walking, not for {game}.")
    kind = f"{game}_slippery" if slippery else game
    numbers = _numbers(game, split)[:num_tasks]

    def load(task_id: str) -> Task:
        number = int(task_id.rpartition("/")[2])
        world: Game
        if game == "blackjack":
            world = _deal(split, number)
            return Task(task_id, world.instruction, kind, (world, world.start))
        if game == "frozen_lake":
            world, number = frozen_lake(_lake(split, number, size), slippery), 0
        else:
            world = taxi() if game == "taxi" else cliff_walking(slippery)
        return Task(task_id, world.instruction, kind, (world, number))

    form = f"/{size}x{size}" if game == "frozen_lake" else ""
    ids = [f"{kind}{form}/{split}/{number:05d}" for number in numbers]
    key = f"toy text {GENERATOR}\n" + "\n".join(ids)
    return TaskSet(ids, load, hashlib.sha256(key.encode()).hexdigest(), split)


def _numbers(game: str, split: str) -> Sequence[int]:
    """Numbers of the tasks of a split: of lakes and decks, or the first states themselves."""
    if game in ("frozen_lake", "blackjack"):
        return range(TASKS[split])
    # for the cliff: all cells but the cliff and the goal
    starts = np.flatnonzero(TaxiEnv().initial_state_distrib) if game == "taxi" else np.arange(37)
    return [s for s in starts.tolist() if split_of_key(f"{game}/{s}", SPLITS) == split]


class ToyTextEnv(TextEnv):
    """Gymnasium's toy worlds as text: small, known to everyone, and stochastic if that is wanted.

    ## Description
    ``frozen_lake`` on random maps, slippery or not; ``taxi``; ``cliff_walking``, slippery or not;
    ``blackjack``. Dynamics and rewards are those of ``gymnasium.envs.toy_text``. Nothing to download.

    ## Action Space
    The words in ``info["admissible_actions"]``: ``left``, ``pick up``, ``hit``, ... It lists those that can
    change something. A known action that cannot (a wall, no passenger) is still taken, but is invalid;
    any other text changes nothing and is invalid.

    ## Observation Space
    A sentence on what happened, and the board with the agent on it (``@``), or the cards.

    ## Rewards
    Gymnasium's: 1 at the lake's goal; -1 a step for taxi and cliff, 20 for the delivered passenger, -10 for
    an impossible action, -100 for a fall; 1, 0 or -1 at blackjack. Success is to reach the goal, to deliver
    the passenger, to win. Behind ``AgentInterface``: 10 on success, else 0, and -0.1 for an invalid response.

    ## Starting State
    ``seed`` or ``options`` choose the task: a map, a first state, or a deck. Where the agent slips depends
    on the seed, too.

    ## Episode End
    Terminated at the goal, in a hole, with the delivered passenger, after the deal; truncated after
    ``max_steps`` (100).

    ## Arguments
    ``game``: ``frozen_lake``, ``taxi``, ``cliff_walking`` or ``blackjack``. ``split``: ``train``, ``valid``
    or ``test``, disjoint by maps, first states and decks. ``size`` (4 to 10): of the lakes. ``slippery``:
    for lakes and cliff. ``num_tasks``: at most that many.
    """

    agent = AgentDefaults(template="board", history_length=2, success_reward=10.0)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        game: str = "frozen_lake",
        split: str = "train",
        size: int = 4,
        slippery: bool = False,
        max_steps: int = 100,
        num_tasks: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(toy_tasks(game, split, size, slippery, num_tasks), max_steps, render_mode)

    @property
    def game(self) -> Game:
        """The world of the present task."""
        return self.task.data[0]  # type: ignore[no-any-return]

    def _start(self, task: Task) -> Outcome:
        self.state = task.data[1]
        return self._outcome(Step(self.state, ""), valid=True)

    def _act(self, action: str) -> Outcome:
        if action not in self.game.actions:
            return self._outcome(Step(self.state, "That is not an action here."), valid=False)
        valid = action in self.game.useful(self.state)
        step = self.game.step(self.state, action, self.np_random)
        self.state = step.state
        return self._outcome(step, valid)

    def _outcome(self, step: Step, valid: bool) -> Outcome:
        return Outcome(
            f"{step.event}\n{self.game.show(step.state)}".strip(),
            reward=step.reward,
            terminated=step.over,
            success=step.success,
            action_is_valid=valid,
            admissible_actions=[] if step.over else self.game.useful(step.state),
        )

    def reference_solution(self) -> list[str]:
        """Actions that succeed, found by looking ahead at what will be sampled: a proof, not an example."""
        return self.game.solution(self.state, self.np_random, self.max_steps - self._steps)

    def expert(self) -> Callable[[], str]:
        """Acts by the dynamics, without looking ahead: value iteration, or the best policy for the cards."""
        return lambda: self.game.advice(self.state)
