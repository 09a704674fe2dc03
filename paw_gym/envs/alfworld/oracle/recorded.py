"""The chances in a recorded episode's answers, and the tokens that tell them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from paw_gym.envs.alfworld.env import ProceduralGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.oracle.observer import Chance, Observer
from paw_gym.envs.alfworld.procedural.generate import VARIATIONS
from paw_gym.transition import Episode

ENV_ID = "paw_gym/ALFWorld-v0"
GRAMMARS = ("put", "move")


class UnknownLawError(ValueError):
    """The true probabilities of an episode's observations are not known; the message says why."""


def is_procedural(episode: Episode) -> bool:
    """True if an episode says that it was played in a procedural game of ALFWorld."""
    of_ours = episode.env_id.rpartition(":")[2] == ENV_ID
    return of_ours and episode.task_id.startswith("procedural/")


def recorded_chances(episode: Episode, samples: int = 4000) -> list[list[Chance]]:
    """Plays a recorded episode again and says what did not follow from its history.

    The arguments of its environment need not be known: the game is the one that opens and answers as
    recorded.

    Args:
        episode: of any environment, in any wording of its prompts.
        samples: of ``Observer``.

    Returns:
        Of each transition, the stretches of ``next_observation`` that were not certain, in order.

    Raises:
        UnknownLawError: it is of another environment, its room is an official one as it is, or no game
            of the generator answers as recorded.
    """
    if not is_procedural(episode):
        raise UnknownLawError(
            "True probabilities are known in procedural games of ALFWorld alone, and this is "
            f"{episode.task_id!r} of {episode.env_id}."
        )
    try:
        observer = Observer.of_game(_game_of(episode), samples)
    except ValueError as error:  # of the generator, or a room as it is
        raise UnknownLawError(str(error)) from None
    return [observer.step(t.action)[1] for t in episode.transitions]


def _game_of(episode: Episode) -> ProceduralGame:
    """The game of an episode's task that opens and answers as recorded."""
    if not episode.transitions:
        raise UnknownLawError("No action was taken in this episode.")
    opening = episode.transitions[0].observation
    if opening is None:
        raise UnknownLawError("This record does not hold the opening text, which tells the game.")
    furthest = -1
    for game in _candidates(episode.task_id):
        engine = NativeEngine(game.compiled())
        if engine.reset() != opening:
            continue
        differs = (
            n
            for n, t in enumerate(episode.transitions)
            if engine.step(t.action)[0] != t.next_observation
        )
        at = next(differs, None)
        if at is None:
            return game
        furthest = max(furthest, at)
    if furthest < 0:
        raise UnknownLawError("No game that the generator makes of this task opens as recorded.")
    raise UnknownLawError(
        f"The game of this task answers step {episode.transitions[furthest].step} in another way than "
        "was recorded."
    )


def _candidates(task_id: str) -> Iterator[ProceduralGame]:
    """The games that an id can mean: of each kind of room, in either grammar."""
    try:
        _, split, task_type, *size, number = task_id.split("/")
        receptacles = int(size[0]) if size else None
        seed = int(number)
    except ValueError:
        raise UnknownLawError(f"{task_id!r} is no task of procedural ALFWorld.") from None
    for variation in VARIATIONS if receptacles is None else ("modified",):
        for grammar in GRAMMARS:
            yield ProceduralGame(split, task_type, seed, grammar, variation, receptacles)


def tokens_of(chances: Sequence[Chance], ends: Sequence[int]) -> list[tuple[int, int]]:
    """The tokens that each stretch of a text lies in.

    Args:
        chances: stretches of the text.
        ends: [tokens] where in the text each token ends, in characters.

    Returns:
        Of each stretch the first of its tokens, and one more than the last.
    """
    spans = list(enumerate(pairwise([0, *ends])))
    found = []
    for chance in chances:
        inside = [k for k, (a, b) in spans if a < chance.end and chance.start < b]
        found.append((inside[0], inside[-1] + 1))
    return found
