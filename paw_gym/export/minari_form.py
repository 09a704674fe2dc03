"""Episodes as a Minari data set, and back.

An episode of ``T`` steps has ``T + 1`` observations, as the environment printed them, and ``T``
actions, as it received them: the spaces are those of the registered environment. What the agent saw
and wrote is in ``infos``: ``prompt`` and ``response``, and as JSON (``record``) whatever else a
transition holds, so that reading gives back equal transitions. Entry ``T`` of ``infos`` is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.export.exporters import EXPORTERS, Exporter, Tally, require_absent, with_clean_texts
from paw_gym.internals.files import new_folder
from paw_gym.transition import Episode, Transition

_NAME = re.compile(r"[-_\w]+?-v\d+")
_HEAD = tuple(f.name for f in fields(Episode) if f.name != "transitions")
_READ_AT_ONCE = 64
"""episodes; Minari loads all that it is asked for"""


def write_minari(
    out: Path,
    episodes: Iterable[Episode],
    *,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Writes ``out/data`` in Minari's Arrow format.

    Args:
        out: the folder, named as Minari names data sets (``NAME-vN``); it appears whole or not at all.
        episodes: what to write; those without a step are left out: Minari has no place for them.

    Raises:
        ValueError: no episode has a step; or the folder's name is not one for Minari.
        FileExistsError: ``out`` exists.
    """
    _require_name(out.name)
    tally = Tally()
    steps = (e for e in with_clean_texts(episodes) if e.transitions)
    require_absent(out, force)
    with new_folder(out) as folder:
        _write(folder / "data", tally.count(steps, progress), out.name, tally)
        if tally.episodes == 0:
            raise ValueError("There is no episode with a step to write.")
    return tally


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^-\w]+", "-", name).strip("-") or "episodes"
        raise ValueError(
            f"{name!r} cannot name a Minari data set: expected letters, digits, '-' and '_', and a "
            f"version at the end, such as {re.sub(r'-v[0-9]*$', '', better)}-v0."
        )


def _write(data: Path, episodes: Iterable[Episode], name: str, tally: Tally) -> None:
    from minari.dataset.minari_storage import MinariStorage

    from paw_gym.spaces import UnicodeText

    # Minari joins a relative path to itself when it measures the files
    storage = MinariStorage.new(data.resolve(), UnicodeText(), UnicodeText(), data_format="arrow")
    # after every episode Minari asks for the size of all files: quadratic, so it is computed once, at the end
    storage.__dict__["get_size"] = lambda: 0.0
    seen: tuple[set[str], set[str]] = (set(), set())
    longest = [1, 1]
    for number, episode in enumerate(episodes):
        buffer = _buffer(number, episode)
        storage.update_episodes([buffer])
        storage.update_episode_metadata([{n: getattr(episode, n) for n in _HEAD}], [number])
        for kind, texts in enumerate((buffer.observations, buffer.actions)):
            seen[kind].update(*texts)
            longest[kind] = max(longest[kind], *map(len, texts))
    del storage.__dict__["get_size"]
    _finish(data, name, tally, list(zip(longest, seen, strict=True)), float(storage.get_size()))


def _buffer(number: int, episode: Episode) -> Any:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    steps = episode.transitions
    first = steps[0].observation  # o_0 as it was printed, if the record has it
    opening = steps[0].prompt if first is None else first
    seen = [opening, *(t.next_observation for t in steps)]
    records = [_record(i, t, episode, seen[i]) for i, t in enumerate(steps)]
    return EpisodeBuffer(
        id=number,
        options={"task_id": episode.task_id},
        observations=seen,
        actions=[t.action for t in steps],
        rewards=[float(t.reward) for t in steps],
        terminations=[t.terminated for t in steps],
        truncations=[t.truncated for t in steps],
        infos={
            "prompt": [*(t.prompt for t in steps), ""],
            "response": [*(t.response for t in steps), ""],
            "record": [*map(json.dumps, records), "{}"],
        },
    )


def _record(index: int, t: Transition, episode: Episode, seen: str) -> dict[str, Any]:
    """The fields of a transition that have no place of their own, or come back changed from there."""
    record: dict[str, Any] = {"action_is_valid": t.action_is_valid, "info": t.info}
    if t.observation != seen:
        record["observation"] = t.observation
    for name in ("prompt", "observation", "response"):
        text = getattr(t, name)
        if text and text.endswith("\0"):  # NumPy's strings, which Minari gives, end before it
            record[name] = text
    if t.parent is not None:
        record["parent"] = t.parent
    if t.step != index:
        record["step"] = t.step
    same = (episode.env_id, episode.task_id, episode.episode_id)
    if (t.env_id, t.task_id, t.episode_id) != same:
        record |= {"env_id": t.env_id, "task_id": t.task_id, "episode_id": t.episode_id}
    return record


def _finish(
    data: Path, name: str, tally: Tally, texts: list[tuple[int, set[str]]], megabytes: float
) -> None:
    """The metadata that is known only at the end of the writing."""
    from importlib.metadata import version

    from gymnasium.spaces import Text
    from minari.serialization import serialize_space

    path = data / "metadata.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    # Gymnasium's own space, of these characters alone: a reader needs nothing of ours
    observations, actions = (
        serialize_space(Text(longest, min_length=0, charset="".join(sorted(characters)) or " "))
        for longest, characters in texts
    )
    metadata |= {
        "dataset_id": name,
        "minari_version": version("minari"),
        "observation_space": observations,
        "action_space": actions,
        "description": "Text episodes with prompts, responses and transitions, by PaW-Gym.",
        "dataset_size": megabytes,
        "requirements": ["paw-gym"],
    }
    spec = _env_spec(tally.env_ids)
    if spec is not None:
        metadata["env_spec"] = spec
    path.write_text(json.dumps(metadata), encoding="utf-8")


def _env_spec(env_ids: set[str]) -> str | None:
    """The specification of the one environment, if it is registered here and can be written down."""
    import gymnasium as gym

    if len(env_ids) != 1:
        return None
    spec = gym.registry.get(next(iter(env_ids)))
    if spec is None or not isinstance(spec.entry_point, str):
        return None
    try:
        return str(spec.to_json())
    except TypeError:
        return None


def minari_folder(path: Path) -> Path | None:
    """The folder with Minari's metadata: ``path`` itself or its ``data``; ``None``: neither."""
    for folder in (path, path / "data"):
        file = folder / "metadata.json"
        if file.is_file() and b'"minari_version"' in file.read_bytes():
            return folder
    return None


def read_minari(data: Path) -> Iterator[Episode]:
    """Episodes of a Minari data set with text spaces.

    One that ``write_minari`` wrote gives back equal transitions. In any other, the prompt is the
    observation and the response is the action.
    """
    from gymnasium.spaces import Text
    from minari import MinariDataset

    dataset = MinariDataset(data)
    for what, space in (
        ("observations", dataset.observation_space),
        ("actions", dataset.action_space),
    ):
        if not isinstance(space, Text):
            raise ValueError(f"The {what} of {data} are {space}; expected texts.")
    name = dataset.env_spec.id if dataset.env_spec else "unknown"
    numbers = [int(n) for n in dataset.episode_indices]
    for start in range(0, len(numbers), _READ_AT_ONCE):
        some = numbers[start : start + _READ_AT_ONCE]
        heads = dataset.storage.get_episode_metadata(some)
        for played, head in zip(dataset.iterate_episodes(some), heads, strict=True):
            yield _episode(played, head, name)


def _episode(played: Any, head: dict[str, Any], env_id: str) -> Episode:
    known = {name: head[name] for name in _HEAD if name in head}
    unnamed = {"env_id": env_id, "task_id": str(played.id), "episode_id": str(played.id)}
    episode = Episode(**{**unnamed, **known})
    infos = played.infos or {}
    for step in range(len(played.rewards)):
        record = json.loads(str(infos["record"][step])) if "record" in infos else {}
        episode.transitions.append(_transition(played, step, episode, infos, record))
    return episode


def _transition(
    played: Any, step: int, episode: Episode, infos: dict[str, Any], record: dict[str, Any]
) -> Transition:
    def text(name: str, otherwise: str) -> str:
        return str(infos[name][step]) if name in infos else otherwise

    observation, action = str(played.observations[step]), str(played.actions[step])
    values = {
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "episode_id": episode.episode_id,
        "step": step,
        "prompt": text("prompt", observation),
        "observation": observation,
        "response": text("response", action),
        "action_is_valid": True,
        "info": {},
        **record,
    }
    return Transition(
        action=action,
        reward=float(np.asarray(played.rewards)[step]),
        next_observation=str(played.observations[step + 1]),
        terminated=bool(played.terminations[step]),
        truncated=bool(played.truncations[step]),
        **values,
    )


EXPORTERS.add("minari", Exporter(write_minari, "minari.MinariDataset({path!r} + '/data')"))
