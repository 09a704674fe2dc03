"""Recorded episodes as token rows with role masks, for trainers that learn from tokens.

The form is that of OpenEnv's RFC 010: a mask for each role, and the coefficient of the world-model term. A
line of JSON is one transition: its context, the response and the next observation, so that no action is in
two rows. Records hold texts: responses are tokenised from them, which is not always how they were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paw_gym.export.exporters import Tally, require_file, with_clean_texts
from paw_gym.internals.files import json_text, new_file
from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface, make_agent_env
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.tokens import ROLES, token_roles
from paw_train.settings.env import recorded_id


def write_tokens(
    out: Path,
    episodes: Iterable[Episode],
    tokenizer: Any,
    coefficient: float = 1.0,
    *,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Writes one line per transition; see ``token_lines`` for its fields.

    Args:
        out: the file; it appears whole or not at all.
        coefficient: of the world-model term, 0 or more.
        force: replace what is there.

    Raises:
        FileExistsError: ``out`` exists.
        IsADirectoryError: ``out`` is a folder.
        ValueError: the tokenizer has no chat template of the usual form, the coefficient is below 0, or an
            episode's environment is not registered.
    """
    if not coefficient >= 0:
        raise ValueError(f"The coefficient of the world model is 0 or more, got {coefficient}.")
    require_file(out, force)
    chat, tally = ChatFormat(tokenizer), Tally()
    interfaces: dict[str, AgentInterface] = {}
    with ExitStack() as opened:
        scratch = opened.enter_context(new_file(out))
        file = opened.enter_context(open(scratch, "w", encoding="utf-8"))
        # tokenizers refuse half of a surrogate pair
        for episode in tally.count(with_clean_texts(episodes), progress):
            if episode.env_id not in interfaces:
                made = make_agent_env(recorded_id(episode.env_id, "The record"))
                interfaces[episode.env_id] = made
                opened.callback(made.close)
            for line in token_lines(episode, chat, interfaces[episode.env_id], coefficient):
                file.write(json_text(line) + "\n")
    return tally


def token_lines(
    episode: Episode, chat: ChatFormat, interface: AgentInterface, coefficient: float
) -> Iterator[dict[str, Any]]:
    """One record for each of an episode's own transitions (those of a branch's parent are with the parent).

    Args:
        interface: of the episode's environment: how prompts show an observation. The episode may have been
            played with another template.
        coefficient: of the world-model term.

    Yields:
        ``env_id``, ``task_id``, ``episode_id``, ``group``, ``step``, ``reward`` of the step, ``return`` of
        the episode, ``input_ids`` [T], the masks ``action``, ``env_output`` and ``warning`` [T] of 0 and 1,
        and ``world_model_coeff``.
    """
    show = interface.text_env.prompt_observation
    for step, t in list(enumerate(episode.transitions))[episode.shared_steps :]:
        row = recorded_row(chat, episode, step, show, interface.template)
        roles = token_roles(row, [bool(t.info.get("malformed"))])
        yield {
            "env_id": t.env_id,
            "task_id": t.task_id,
            "episode_id": episode.episode_id,
            "group": episode.group,
            "step": t.step,
            "reward": t.reward,
            "return": episode.total_reward,
            "input_ids": row.ids,
            **{name: [int(role == name) for role in roles] for name in ROLES},
            "world_model_coeff": coefficient,
        }
