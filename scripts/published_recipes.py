"""Writes the recipes of the published tables, and docs/recipes.md, from one list of rows.

    python scripts/published_recipes.py          # write
    python scripts/published_recipes.py --check  # exit 1 where a file differs from what would be written

The hyperparameters that rows share stand in recipes/base/; a row holds what it changes. Source of rows and
figures: arXiv 2606.02388, Tables 1 to 4.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAPER = "arXiv 2606.02388"
MODELS = {
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
}
ENVIRONMENTS = {"alfworld": "ALFWorld", "webshop": "WebShop", "search_qa": "Search QA"}
WORLD_MODEL = "world_model: {enabled: true}"
METHODS = {
    "grpo": ("GRPO", ()),
    "grpo_paw": ("GRPO + PaW", (WORLD_MODEL,)),
    "grpo_paw-fixed": (
        "GRPO + PaW without adaptive weight",
        ("world_model: {enabled: true, adaptive: false}",),
    ),
    "grpo_paw-ce": ("GRPO + PaW, CE instead of CMAE", ("world_model: {enabled: true, loss: ce}",)),
    "gigpo": ("GiGPO", ("algorithm: {name: gigpo}",)),
    "gigpo_paw": ("GiGPO + PaW", ("algorithm: {name: gigpo}", WORLD_MODEL)),
    "rloo": ("RLOO", ("algorithm: {name: rloo}",)),
    "rloo_paw": ("RLOO + PaW", ("algorithm: {name: rloo}", WORLD_MODEL)),
    "ppo": ("PPO", ()),
    "ppo_paw": ("PPO + PaW", (WORLD_MODEL,)),
    "search-r1": ("Search-R1", ()),
    "zerosearch": ("ZeroSearch", ()),
}
PPO = (
    "algorithm: {name: ppo, penalty: episode, critic: {lr: 1.0e-5}}",
    "rollout: {groups: 128, group_size: 1}   # independent episodes; for PaW each is its own group",
)
SEARCH_R1 = (
    "# PPO of arXiv 2503.09516: one growing rollout, token-level GAE, each token's KL in its reward, no",
    "# penalty for format; two optimiser steps an update.",
    "updates: 500",
    "env: {mode: conversation, invalid_penalty: 0.0}",
    "algorithm: {name: ppo, level: token, penalty: episode, critic: {lr: 1.0e-5}}",
    "rollout: {groups: 512, group_size: 1, max_response_tokens: 500, stop_at_tags: true}",
    "objective: {kl_in: reward}",
    "optimizer: {minibatch_size: 256}       # dialogues",
)
LARGE_WITH_CRITIC = ("qwen2.5-7b", "search-r1")
"""policy, reference and critic of 7 billion weights each, beside vLLM"""
ZEROSEARCH = (
    "# A language model plays the search engine, noisier and noisier; F1 as the reward (arXiv 2505.04588).",
    "# Evaluations search the corpus, as those of the other rows do.",
    "env:",
    "  train_kwargs:",
    "    retriever: simulated",
    "    reward: f1",
    "    retriever_settings:",
    "      url: http://127.0.0.1:8001/v1    # any OpenAI-compatible endpoint",
    "      model: Qwen/Qwen2.5-14B-Instruct",
    "      curriculum: {start: 0.0, end: 0.5, base: 4.0}",
)


@dataclass(frozen=True)
class Row:
    """One trained row of a published table."""

    environment: str
    model: str
    method: str
    figures: tuple[tuple[str, str], ...]
    """(table, what it reports)"""

    @property
    def name(self) -> str:
        """The recipe's name."""
        return f"{self.environment}_{self.model}_{self.method}"

    @property
    def title(self) -> str:
        """The method in words."""
        return METHODS[self.method][0]

    def changes(self) -> tuple[str, ...]:
        """The lines that differ from the base."""
        lines = METHODS[self.method][1]
        if self.method.startswith("ppo"):
            return (*PPO, *lines)
        if self.method == "search-r1":
            return SEARCH_R1
        if self.method == "zerosearch":
            return ZEROSEARCH
        if self.environment == "search_qa" and self.method.startswith("gigpo"):
            # anchor states of search match when they are similar
            first = "algorithm: {name: gigpo, similarity: 0.9, autojunk: true}"
            return (first, *lines[1:])
        return lines

    def _offload(self) -> str:
        """What else lets the row train on eight GPUs of 80 GB (``paw train NAME --plan``)."""
        large = self.model == "qwen2.5-14b" or (self.model, self.method) == LARGE_WITH_CRITIC
        return ", reference_offload: true" if large else ""

    def text(self) -> str:
        """The recipe file."""
        env = ENVIRONMENTS[self.environment]
        reported = "; ".join(f"{table}: {value}" for table, value in self.figures)
        return "\n".join(
            [
                f"# {self.title}, {MODELS[self.model].rpartition('/')[2]}, {env}.",
                f"# Published ({PAPER}, mean of 3 seeds), {reported}. Not run by us.",
                "# Made by scripts/published_recipes.py.",
                f"base: base/{self.environment}",
                f"model: {{path: {MODELS[self.model]}{self._offload()}}}",
                *self.changes(),
                "",
            ]
        )


def rows() -> list[Row]:
    """Every row, each recipe once."""
    found: dict[str, Row] = {}
    for environment, model, method, table, value in [*_tables_1_and_2(), *_tables_3_and_4()]:
        row = Row(environment, model, method, ((table, value),))
        old = found.get(row.name)
        figures = (*old.figures, *row.figures) if old else row.figures
        found[row.name] = Row(environment, model, method, figures)
    return list(found.values())


Published = tuple[str, str, str, str, str]
"""environment, model, method, table, figures"""


def _tables_1_and_2() -> list[Published]:
    main = ("grpo", "grpo_paw", "gigpo", "gigpo_paw")
    alfworld = {"qwen2.5-1.5b": (70.0, 77.9, 87.6, 90.4), "qwen2.5-7b": (77.6, 80.6, 90.8, 91.8)}
    webshop = {
        "qwen2.5-1.5b": ((75.6, 60.6), (83.8, 68.6), (83.2, 66.2), (87.7, 75.3)),
        "qwen2.5-7b": ((75.4, 66.5), (84.5, 70.5), (85.0, 73.8), (87.6, 76.7)),
    }
    search = {
        "qwen2.5-3b": (32.5, 31.7, 43.9, 44.8, 41.2, 44.2),
        "qwen2.5-7b": (38.4, 39.0, 47.9, 48.8, 45.8, 47.5),
    }
    found: list[Published] = []
    for model, rates in alfworld.items():
        for method, rate in zip(main, rates, strict=True):
            found.append(("alfworld", model, method, "Table 1", f"success {rate} %"))
    for model, pairs in webshop.items():
        for method, (score, rate) in zip(main, pairs, strict=True):
            figures = f"score {score}, success {rate} %"
            found.append(("webshop", model, method, "Table 1", figures))
    for model, values in search.items():
        for method, value in zip(("search-r1", "zerosearch", *main), values, strict=True):
            found.append(("search_qa", model, method, "Table 2", f"exact match {value} %"))
    return found


def _tables_3_and_4() -> list[Published]:
    others = (
        ("qwen2.5-1.5b", "ppo", 59.1, 65.2),
        ("qwen2.5-1.5b", "rloo", 56.7, 61.2),
        ("qwen3-1.7b", "grpo", 45.4, 54.2),
        ("llama3.2-3b", "grpo", 4.0, 62.2),
        ("qwen2.5-14b", "grpo", 74.7, 77.1),
    )
    ablation = (
        ("grpo", 70.0, 60.6),
        ("grpo_paw", 77.9, 68.6),
        ("grpo_paw-fixed", 75.5, 67.0),
        ("grpo_paw-ce", 68.5, 57.2),
    )
    found: list[Published] = []
    for model, method, plain, paw in others:
        found.append(("webshop", model, method, "Table 3", f"success {plain} %"))
        found.append(("webshop", model, f"{method}_paw", "Table 3", f"success {paw} %"))
    for method, home, shop in ablation:
        found.append(("alfworld", "qwen2.5-1.5b", method, "Table 4", f"success {home} %"))
        found.append(("webshop", "qwen2.5-1.5b", method, "Table 4", f"success {shop} %"))
    return found


PAGE = """# Recipes

A recipe is a YAML file in `recipes/` with the settings of one training run. Settings that it leaves out have
the defaults documented in `paw_train/settings`. `paw recipes` lists the recipes. Any setting can be given
after a name:

```bash
paw train embedded updates=5 optimizer.lr=5e-4
```

`base: NAME` builds a recipe on another one: groups of settings are merged, and the recipe overrides its base.
So a recipe of your own can be short:

```yaml
# mine.yaml: paw train mine.yaml
base: embedded
updates: 40
world_model: {coef: 0.1}
```

## Recipes that run on a laptop

| recipe | what it is |
| --- | --- |
| `embedded` | the default: a small transformer trained from scratch learns procedural ALFWorld games |
| `webshop_tiny_cpu` | the same on the generated shop, [with figures](environments/webshop.md#train-on-it) |
| `search_qa_tiny_cpu` | the same on the made-up encyclopedia, \
[with figures](environments/search-qa.md#train-on-it) |
| `search_qa_tiny_zerosearch` | ZeroSearch offline, with a script as the simulated retriever: a smoke test |
| `wm_sft_embedded`, `rwml_embedded`, `iwm_embedded` | `embedded`, with \
[world-model learning](world-model-learning.md) before RL |
| `many_worlds` | five environments [in one run](many-worlds.md): ALFWorld, WebShop, Search QA, \
frozen lakes, Sokoban |
| `llm`, `llm_full` | a pretrained model of yours (`model.path=FOLDER`): LoRA adapters, or all weights |
| `smollm2_alfworld_cpu` | a real language model, SmolLM2-135M, with LoRA on a CPU |
| `smoke` | a plumbing test: a minute of everything, whose numbers are not a result |

## Recipes of the published tables

There is one recipe for each trained row of Tables 1 to 4 of arXiv 2606.02388, with the hyperparameters of its
Appendix A.1 (they are in `recipes/base/`). What the paper does not state is marked there: the number of
updates, the evaluation splits, and what GiGPO's published code does
([verl-agent](https://github.com/langfengQ/verl-agent)). That code computes a group's statistics over steps
(`algorithm.statistics: step`). It penalizes malformed responses only (`env.invalid_when: malformed`), and
the penalty counts only for its own step (`algorithm.penalty: step`; not in PPO, where every turn has its own
reward). Responses end with the sampled end token (`rollout.stop_at_tags: false`), and the similarity of
anchor states uses difflib's heuristic (`algorithm.autojunk: true`). Search-R1 has the KL of each token in its
reward (`objective.kl_in: reward`), as its published script does. **None of them has been run by us**: they
need GPUs and the official data. The figures are the paper's, means of 3 seeds, and are not results
of this project.

```bash
paw data download alfworld --dest data/alfworld
paw train alfworld_qwen2.5-1.5b_gigpo_paw seed=0
paw train alfworld_qwen2.5-1.5b_gigpo_paw env.kwargs.data_dir=/my/alfworld model.path=/my/qwen
```

Each recipe has been loaded and validated, and no more than that. These are full fine-tuning runs, which the
single-process engine can hold only if model, gradients and optimizer state fit on one GPU.

@tables
## Grids

`paw compare` takes a grid of methods and seeds: see [Compare](compare.md).
"""


def page() -> str:
    """docs/recipes.md."""
    parts = []
    for environment, title in ENVIRONMENTS.items():
        parts += [f"### {title}", "", "| recipe | model | method | published | here |"]
        parts.append("| --- | --- | --- | --- | --- |")
        for row in rows():
            if row.environment == environment:
                figures = "; ".join(f"{value} ({table})" for table, value in row.figures)
                model = MODELS[row.model].rpartition("/")[2]
                parts.append(f"| `{row.name}` | {model} | {row.title} | {figures} | not run |")
        parts.append("")
    return PAGE.replace("@tables", "\n".join(parts))


def files() -> dict[Path, str]:
    """Every file that this script makes, and its text."""
    made = {ROOT / "recipes" / f"{row.name}.yaml": row.text() for row in rows()}
    return {**made, ROOT / "docs" / "recipes.md": page()}


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(__doc__, files()))
