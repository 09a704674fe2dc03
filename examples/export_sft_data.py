"""An expert's games as examples for supervised fine-tuning, and as a data set.

python examples/export_sft_data.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from paw_gym.export import expert_episodes, read_episodes
from paw_gym.export.hub import write_hub_dataset
from paw_gym.export.sft import write_sft


def main() -> None:
    """Plays the games, writes both formats, and prints one example of each kind."""
    games = list(expert_episodes("paw_gym/ALFWorld-v0", episodes=3, seed=0, split="train"))
    with tempfile.TemporaryDirectory() as folder:
        _, examples = write_sft(Path(folder) / "sft", games)
        for kind, count in examples.items():
            file = Path(folder) / "sft" / f"{kind}.jsonl"
            example = json.loads(file.read_text().splitlines()[0])
            roles = ", ".join(message["role"] for message in example["prompt"])
            print(f"{kind}: {count} examples. The first: {roles} ->")
            print(f"  {example['completion'][0]['content']!r:.100}")

        tally = write_hub_dataset(Path(folder) / "games", games)
        print(f"data set: {tally.transitions} transitions in {tally.episodes} episodes")
        assert list(read_episodes(Path(folder) / "games")) == games
        print("The episodes that were read back are equal.")


if __name__ == "__main__":
    main()
