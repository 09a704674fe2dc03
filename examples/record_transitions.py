"""Episodes on disk: recorded as they are played, read back, and written as JSONL again.

python examples/record_transitions.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from paw_gym import RecordTransitions, make_agent_env
from paw_gym.transition import read_jsonl, write_jsonl


def play(path: Path) -> None:
    """Plays one procedural game with its reference solution and records it."""
    env = RecordTransitions(make_agent_env("paw_gym/ALFWorld-v0", split="valid_unseen"), path)
    env.reset(seed=3)
    for response in env.unwrapped.reference_solution():
        env.step(response)
    env.close()


def main() -> None:
    """Records an episode, reads it back, prints it, and writes an equal copy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        play(path)
        [episode] = read_jsonl(path)
        print(f"{episode.task_id}: {episode.instruction}")
        for t in episode.transitions:
            print(
                f"{t.step:3}  {t.action:40} reward {t.reward:4.1f}  -> {t.next_observation[:60]!r}"
            )
        last = episode.transitions[-1]
        print(
            f"terminated {last.terminated}, success {episode.success}, return {episode.total_reward}"
        )

        copy = Path(folder) / "copy.jsonl"
        write_jsonl(copy, [episode])
        assert list(read_jsonl(copy)) == [episode]


if __name__ == "__main__":
    main()
