"""Every agent on 30 tasks of each panel, with a model behind an endpoint: the leaderboard's rows.

    python benchmarks/agents.py openai:SmolLM2-135M-Instruct --url http://127.0.0.1:8765/v1 --out DIR
    paw leaderboard DIR/*/

What is finished in DIR is kept, and answers are cached there: stopped, the same command goes on. Panels
on real data (``--alfworld FOLDER``) are left out without their data.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paw_train.evaluation import evaluate_from_args

SHORT = ["agent.examples=1", "agent.example_tokens=600", "agent.observation_chars=300"]
AGENTS: Mapping[str, Sequence[str]] = {
    "expert": [],
    "random": [],
    "plain": [],
    "cot": [],
    "react": SHORT,
    "self_consistency": ["agent.samples=3"],
    "best_of_n": ["agent.n=2"],
    "reflexion": [
        *SHORT,
        "agent.trials=2",
        "agent.reflection_tokens=48",
        "agent.transcript_tokens=500",
    ],
}
"""small settings, for a small model on few cores"""
PANELS: Mapping[str, Sequence[str]] = {
    "search_qa/synthetic": [],
    "alfworld/procedural": ["env.kwargs.max_steps=6"],
    "webshop/generated": ["env.kwargs.max_steps=5"],
    "alfworld/valid_seen": ["env.kwargs.max_steps=6"],
}
BOUNDS = ("expert", "random")


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
    parser.add_argument("--max-steps", type=int, help="instead of each panel's here")
    args = parser.parse_args()
    sampling = ["rollout.max_response_tokens=48", "evaluation.temperature=0.7"]
    if args.url:
        cache = args.out / "answers.sqlite"
        sampling += [f"endpoint.url={args.url}", f"endpoint.cache={cache}", "endpoint.timeout=3600",
                     "endpoint.concurrency=100"]  # fmt: skip
    for panel in args.panels.split(","):
        settings = [f"evaluation.tasks={args.tasks}", *PANELS[panel]]
        if args.max_steps:
            settings.append(f"env.kwargs.max_steps={args.max_steps}")
        if panel == "alfworld/valid_seen":
            if not args.alfworld:
                print(f"{panel}: left out, there is no --alfworld", flush=True)
                continue
            settings.append(f"env.kwargs.data_dir={args.alfworld}")
        for agent in args.agents.split(","):
            asked = [] if agent in BOUNDS else sampling
            folder = args.out / f"{panel.replace('/', '-')}-{agent}"
            play(args.model, agent, panel, [*settings, *AGENTS[agent], *asked], folder)


if __name__ == "__main__":
    main()
