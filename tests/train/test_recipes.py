"""Recipes: inheritance, and every row of the published tables with the published settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from paw_gym.internals.constructors import parameters_of
from paw_train.algorithms.update import optimizer_steps
from paw_train.settings import OptimizerSettings, load_settings, recipe_names
from paw_train.settings.recipes import descriptions, read_yaml
from paw_train.training.plan import make_plan

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load((ROOT / "recipes" / "published.yaml").read_text(encoding="utf-8"))["rows"]
TABLE = {name: row for name, row in ROWS.items() if not name.startswith("tau2")}


def test_a_recipe_lies_on_its_base_group_by_group(tmp_path: Path) -> None:
    for name, text in (
        ("root", "name: root\nupdates: 7\noptimizer: {lr: 0.5, minibatches: 3}\n"),
        ("middle", "base: root.yaml\nenv: {kwargs: {a: 1, b: 2}}\n"),
        ("top", "base: middle.yaml\noptimizer: {lr: 0.25}\nenv: {kwargs: {b: 3}}\n"),
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
    settings = load_settings(tmp_path / "top.yaml", ["optimizer.minibatches=4"])
    assert (settings.name, settings.updates) == ("top", 7)  # its own run, not its base's
    assert load_settings("rwml_embedded").cloning == load_settings("embedded").cloning
    assert (settings.optimizer.lr, settings.optimizer.minibatches) == (0.25, 4)
    assert settings.env.kwargs == {"a": 1, "b": 3}
    assert settings.optimizer.weight_decay == OptimizerSettings().weight_decay


def test_folders_may_be_of_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "base.yaml").write_text("out: ~/runs\n")
    (tmp_path / "own.yaml").write_text("base: ~/base.yaml\nupdates: 3\n")
    settings = load_settings(str(tmp_path / "own.yaml"), ["warm_starts=~/warm"])
    assert settings.out == str(tmp_path / "runs")
    assert settings.warm_starts == str(tmp_path / "warm")
    assert load_settings("smoke", ["out=here/~"]).out == "here/~"


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads(name: str) -> None:
    assert load_settings(name).name == name


def test_minibatches_follow_from_their_size_where_it_is_given() -> None:
    sized = OptimizerSettings(minibatches=9, minibatch_size=64)
    assert [optimizer_steps(sized, n) for n in (1, 64, 65, 640)] == [1, 1, 2, 10]
    assert optimizer_steps(OptimizerSettings(minibatches=9), 640) == 9
    assert optimizer_steps(OptimizerSettings(minibatches=9), 4) == 4  # a sequence each
    with pytest.raises(ValueError, match="minibatch_size"):
        OptimizerSettings(minibatch_size=0)


# arXiv 2606.02388, Appendix A.1, as spec/method.md section 3 lists it
SETUP = {
    "alfworld": ("ALFWorld", 16, 8, 2048, 50),
    "webshop": ("WebShop", 16, 8, 4096, 15),
    "search_qa": ("SearchQA", 256, 5, 4096, 4),
}
"""environment, groups, size of a group, tokens of a prompt, steps of an episode"""
REWARD = {"alfworld": (10.0, -0.1), "webshop": (10.0, -0.1), "search_qa": (1.0, -0.01)}
MINIBATCH = {"alfworld": 256, "webshop": 64, "search_qa": 512}
KL = {"alfworld": 0.01, "webshop": 0.01, "search_qa": 0.001}
MODELS = {
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
}


def test_every_trained_row_of_the_tables_is_a_recipe() -> None:
    assert len(TABLE) == 42 and set(ROWS) <= set(recipe_names())
    assert "published" not in recipe_names()
    # Table 1: two models, two environments, four methods; Table 2: two models, six methods
    for table, rows in (("Table 1", 16), ("Table 2", 12), ("Table 3", 10), ("Table 4", 8)):
        assert sum(table in row["published"] for row in TABLE.values()) == rows
    assert "success 90.4 %" in descriptions()["alfworld_qwen2.5-1.5b_gigpo_paw"]


def test_a_recipe_with_an_empty_group_or_a_date(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("env: {kwargs: {since: 2024-01-01}}\nnote: {'a': '🙂'}\ncloning:\n")
    for wrong in ([], ["env.id=paw_gym/WebShop-v0"], ["world_model.preset=paw"]):
        with pytest.raises(ValueError, match="cloning is a group|'cloning' is a value|note"):
            load_settings(recipe, wrong)
    assert read_yaml(recipe.read_text(), "it")["env"] == {"kwargs": {"since": "2024-01-01"}}
    assert read_yaml('{"a": "\\ud83d\\ude42", "b": 1e-05}', "it") == {"a": "🙂", "b": 1e-05}


@pytest.mark.parametrize("name", TABLE)
def test_a_published_recipe_has_the_published_settings(name: str) -> None:
    environment, model, method = re.match("(.+)_([^_]+[0-9]b)_(.+)", name).groups()
    settings = load_settings(name)
    env, groups, size, prompt, steps = SETUP[environment]
    assert settings.name == name
    assert settings.env.id == f"paw_gym/{env}-v0"
    assert settings.env.kwargs["max_steps"] == steps
    assert {*settings.env.kwargs} <= {*parameters_of(settings.env.id)}
    assert settings.env.max_return == REWARD[environment][0]
    assert settings.optimizer.lr == 1e-6
    assert settings.objective.kl_coef == KL[environment]
    # of the reference code: the paper does not state them
    assert settings.optimizer.weight_decay == 0.01
    no_bonus = environment == "search_qa" and method != "search-r1"
    assert settings.objective.entropy_coef == (0.0 if no_bonus else 0.001)
    assert settings.rollout.temperature == 1.0
    assert settings.evaluation.temperature == (0.0 if environment == "search_qa" else 0.4)
    assert settings.model.path == MODELS[model]
    if method == "search-r1":  # another paper's set-up
        assert settings.objective.kl_in == "reward" and settings.algorithm.level == "token"
        episodes = settings.rollout.groups * settings.rollout.group_size
        assert optimizer_steps(settings.optimizer, episodes) == 2  # a sequence is an episode
        return
    assert settings.env.invalid_when == "malformed"
    assert settings.algorithm.statistics == "step" and not settings.rollout.stop_at_tags
    assert settings.env.invalid_penalty == REWARD[environment][1]
    assert settings.optimizer.minibatch_size == MINIBATCH[environment]
    assert settings.rollout.max_response_tokens == 512
    assert settings.rollout.max_context_tokens == prompt + 512
    assert settings.env.mode == "window"
    assert settings.env.history_length == (None if environment == "search_qa" else 2)
    algorithm, _, kind = method.partition("_")
    wm = settings.world_model
    assert wm.enabled == kind.startswith("paw")
    assert (wm.alpha, wm.rho, wm.coef) == (0.75, 0.2, 1.0)
    assert wm.loss == ("ce" if kind == "paw-ce" else "cmae")
    assert wm.adaptive is (kind != "paw-fixed")
    if algorithm == "ppo":
        assert (settings.rollout.groups, settings.rollout.group_size) == (128, 1)
        assert settings.algorithm.critic.lr == 1e-5
    else:
        assert (settings.rollout.groups, settings.rollout.group_size) == (groups, size)
    if algorithm in ("grpo", "gigpo", "rloo", "ppo"):
        assert settings.algorithm.name == algorithm
    if algorithm == "gigpo":
        similar = 0.9 if environment == "search_qa" else None
        assert settings.algorithm.similarity == similar
        assert settings.algorithm.gamma is None  # 0.95


@pytest.mark.parametrize(
    ("row", "method", "updates"),
    [("grpo", "off", 150), ("wm-sft", "sft", 0), ("rwml", "rwml", 0), ("rwml_grpo", "rwml", 150)],
)
def test_rwmls_second_benchmark_fits_one_gpu(row: str, method: str, updates: int) -> None:
    settings = load_settings(f"tau2_qwen3-8b_{row}")
    assert (settings.world_model_learning.method, settings.updates) == (method, updates)
    assert (settings.env.id, settings.env.kwargs["user"]) == ("paw_gym/Tau2-v0", "endpoint")
    assert {*settings.env.kwargs} <= {*parameters_of(settings.env.id)}
    assert not settings.world_model.enabled  # GRPO alone, before or after
    plan = make_plan(settings)
    assert plan.gpus == 1 and not plan.problems
