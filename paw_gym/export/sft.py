"""Chat-format examples for supervised fine-tuning: demonstrations, and world-model pairs.

Both are in the conversational prompt-completion form of TRL (``prompt`` and ``completion`` are lists
of messages), so ``trl.SFTTrainer`` takes them as they are and learns the completion alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paw_gym.export.exporters import Tally, card, with_clean_texts
from paw_gym.internals.files import new_folder, require_free
from paw_gym.internals.naming import require_choice
from paw_gym.internals.printable import counted
from paw_gym.internals.tool_calls import call_messages, in_tags, tool_schemas, tools_of
from paw_gym.transition import Episode

QUESTION = (
    "What does the environment answer to this? Write its next observation word for word, "
    "and nothing else."
)
"""the turn after the agent's own, in world-model pairs"""
KINDS = ("policy", "world_model")

Row = dict[str, Any]


def policy_rows(episode: Episode) -> Iterator[Row]:
    """One example per step: what the agent saw, and its response, unless invalid. If actions were tool calls,
    they are calls in the messages too, and ``tools`` has the schemas."""
    names = tools_of(episode)
    for number, t in enumerate(episode.transitions):
        if not t.action_is_valid:
            continue
        prompt, tools = episode.messages(number), {}
        answer: Row = {"role": "assistant", "content": t.response}
        if names:
            *prompt, answer = call_messages(episode, number)
            tools = {"tools": tool_schemas(names)}
        yield {"prompt": prompt, "completion": [answer], **tools, **_origin(episode, t)}


def world_model_rows(episode: Episode) -> Iterator[Row]:
    """One example per step: after what the agent saw and answered, ``o_{t+1}``.

    The context up to the response is that of PaW's world model (``h_t, a_t``); then a user's turn
    asks for the observation, so that any chat template can carry it and an agent's own turns stay
    actions, in tags.
    """
    episode = in_tags(episode)
    for number, t in enumerate(episode.transitions):
        context = [
            *episode.messages(number),
            {"role": "assistant", "content": t.response},
            {"role": "user", "content": QUESTION},
        ]
        answer = [{"role": "assistant", "content": t.next_observation}]
        yield {"prompt": context, "completion": answer, **_origin(episode, t)}


def _origin(episode: Episode, t: Any) -> Row:
    return {"env_id": episode.env_id, "episode_id": episode.episode_id, "step": t.step}


def write_sft(
    out: Path,
    episodes: Iterable[Episode],
    *,
    only: str | None = None,
    failures: bool = False,
    dedup: bool = False,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> tuple[Tally, dict[str, int]]:
    """Writes ``policy.jsonl`` and ``world_model.jsonl`` with a card that ``datasets`` reads.

    Args:
        out: the folder; it appears whole or not at all.
        only: ``policy`` (steps of successful episodes) or ``world_model`` (steps of all); ``None``: both.
        failures: make demonstrations of unsuccessful episodes too.

    Returns:
        Counts of the episodes, and of the examples by kind.

    Raises:
        FileExistsError: ``out`` exists; ``force`` replaces earlier examples.
        ValueError: there is no such kind, or one got no example.
    """
    if only is not None:
        require_choice("kind of example", only, KINDS)
    tally, rows = Tally(), dict.fromkeys(KINDS if only is None else (only,), 0)
    marks = [f"{kind}.jsonl" for kind in KINDS]
    require_free(out, next((m for m in marks if (out / m).is_file()), marks[0]), force)
    seen: set[bytes] = set()
    with new_folder(out) as folder:
        with ExitStack() as opened:
            files = {
                kind: opened.enter_context(open(folder / f"{kind}.jsonl", "w", encoding="utf-8"))
                for kind in rows
            }
            # `datasets` cannot read a file with half of a surrogate pair
            for episode in tally.count(with_clean_texts(episodes), progress):
                for kind, file in files.items():
                    for row in _rows(episode, kind, failures):
                        if not (dedup and _is_known(row, seen)):
                            file.write(json.dumps(row) + "\n")
                            rows[kind] += 1
        for kind, count in rows.items():
            if count == 0:
                raise _no_example(kind, tally)
        (folder / "README.md").write_text(_card(out.name, tally, rows), encoding="utf-8")
    return tally, rows


def _rows(episode: Episode, kind: str, failures: bool) -> Iterator[Row]:
    if kind == "world_model":
        return world_model_rows(episode)
    return policy_rows(episode) if episode.success or failures else iter(())


def _is_known(row: Row, seen: set[bytes]) -> bool:
    text = json.dumps([row["prompt"], row["completion"]])
    digest = hashlib.sha256(text.encode()).digest()[:16]
    known = digest in seen
    seen.add(digest)
    return known


def _no_example(kind: str, tally: Tally) -> ValueError:
    hint = (
        " Demonstrations are accepted actions of successful episodes: take the failed ones too "
        "(--failures), or write the world-model pairs only (--only world_model)."
    )
    return ValueError(
        f"No example of the kind {kind!r} in {counted(tally.episodes, 'episode')}, "
        f"{tally.successes} of them successful, with {counted(tally.transitions, 'step')}."
        + (hint if tally.transitions and kind == "policy" else "")
    )


def _card(name: str, tally: Tally, rows: dict[str, int]) -> str:
    counts = "\n".join(f"- `{kind}`: {counted(count, 'example')}" for kind, count in rows.items())
    kind = next(iter(rows))
    text = f"""\
Chat-format examples from {counted(tally.episodes, "episode")} of {tally.environments}:

{counts}

```python
from datasets import load_dataset
from trl import SFTTrainer

data = load_dataset("path/to/{name}", "{kind}", split="train")
trainer = SFTTrainer("Qwen/Qwen2.5-0.5B-Instruct", train_dataset=data)
```

`policy` holds what an agent saw and answered; `world_model` what came of it. Written by
[PaW-Gym](https://pypi.org/project/paw-gym/).
"""
    return card(name, {kind: f"{kind}.jsonl" for kind in rows}, text)
