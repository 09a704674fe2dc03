"""``paw train --plan``: published recipes fit their GPUs; memory and sizes follow from formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from paw_train.cli.program import app
from paw_train.settings import Settings, load_settings, recipe_names
from paw_train.training.model_shape import KNOWN, model_shape
from paw_train.training.plan import make_plan, render

PUBLISHED = [name for name in recipe_names() if "qwen" in name or "llama" in name]


def _settings(*overrides: str) -> Settings:
    return load_settings("alfworld_qwen2.5-1.5b_gigpo_paw", ["engine=openrlhf", *overrides])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_can_be_planned(name: str) -> None:
    settings = load_settings(name, ["engine=openrlhf"])
    plan = make_plan(settings)
    assert plan.gpus == 8
    assert plan.episodes == settings.rollout.groups * settings.rollout.group_size
    assert f"--actor.model_name_or_path {settings.model.path}" in plan.command
    assert sum(plan.seconds.values()) > 0


def test_a_critic_is_a_role_as_large_as_the_policy_without_its_logits() -> None:
    plan = make_plan(_settings("algorithm.name=ppo", "openrlhf.colocate=actor_ref"))
    roles = {role.name: role for role in plan.roles}
    policy, critic = roles["policy"], roles["critic"]
    assert critic.memory == pytest.approx(policy.memory - policy.parts["logits"])
    assert plan.gpus == 8 + 8 + 1  # it has GPUs of its own, as vLLM does
    assert make_plan(_settings("algorithm.name=ppo")).gpus == 8
    shared = make_plan(_settings("algorithm.name=ppo")).seconds
    assert shared["critic"] > shared["training"]
    assert "critic" not in plan.seconds


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
    ],
)
def test_shapes_count_the_published_numbers_of_parameters(model: str, parameters: int) -> None:
    assert KNOWN[model].parameters == parameters


def test_a_folder_tells_its_shape_by_its_config(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    shape = model_shape(str(tmp_path))
    assert shape.parameters == sum(p.numel() for p in Qwen2ForCausalLM(config).parameters())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match="num_attention_heads"):
        model_shape(str(tmp_path))


def test_an_unknown_model_or_gpu_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Qwen2\.5-7B-Instruct"):
        make_plan(_settings("model.path=Qwen/Qwen2.5-7B-Instrukt"))
    with pytest.raises(ValueError, match="h100"):
        make_plan(_settings("openrlhf.gpu=h10"))


def test_a_run_in_one_process_has_no_plan() -> None:
    with pytest.raises(ValueError, match="engine=openrlhf"):
        make_plan(_settings("engine=local"))


def test_memory_follows_the_formula() -> None:
    size, gib = 1_543_714_304, 2**30
    policy = make_plan(_settings()).roles[0].parts
    assert policy["weights"] == pytest.approx(2 * size / gib)
    assert policy["optimiser"] == pytest.approx(12 * size / 8 / gib)
    assert policy["gradients"] == pytest.approx(2 * size / 8 / gib)
    split = make_plan(_settings("openrlhf.zero_stage=3", "openrlhf.adam_offload=true")).roles[0]
    assert split.parts["weights"] == pytest.approx(2 * size / 8 / gib)
    assert split.parts["optimiser"] == 0
    half = make_plan(_settings("optimizer.micro_batch_tokens=8192")).roles[0].parts
    assert half["logits"] == pytest.approx(policy["logits"] / 2)


@pytest.mark.parametrize(
    ("colocate", "kl", "gpus"),
    [("all", 0.01, 8), ("actor_ref", 0.01, 10), ("none", 0.01, 18), ("none", 0.0, 10)],
)
def test_gpus_add_up_by_layout(colocate: str, kl: float, gpus: int) -> None:
    layout = [] if colocate == "all" else ["openrlhf.engines=2"]
    plan = make_plan(_settings(f"openrlhf.colocate={colocate}", f"objective.kl_coef={kl}", *layout))
    assert plan.gpus == gpus
    assert ("reference" in [role.name for role in plan.roles]) == (kl > 0)


def test_a_dialogue_is_trained_on_once_a_window_every_turn() -> None:
    window = make_plan(_settings())
    dialogue = make_plan(_settings("env.mode=conversation"))
    assert window.train_tokens == 50 * dialogue.train_tokens
    assert dialogue.train_tokens == 128 * 2560  # prompt and response together


def test_what_does_not_fit_is_a_warning() -> None:
    big = make_plan(_settings("model.path=Qwen/Qwen2.5-14B-Instruct", "openrlhf.gpu=a100-40g"))
    assert any("need" in problem for problem in big.warnings)
    assert any("does not hold the weights" in problem for problem in big.warnings)
    assert "WARNING" in render(big)
    assert "WARNING" not in render(make_plan(_settings("openrlhf.gpu=h200")))


def test_the_command_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    out = f"out={tmp_path / 'runs'}"
    recipe = "alfworld_qwen2.5-1.5b_gigpo_paw"
    result = CliRunner().invoke(app, ["train", recipe, "engine=openrlhf", out, "--plan"])
    assert result.exit_code == 0
    assert "8 x h100, 1.54 billion parameters" in result.output
    assert "python -m openrlhf.cli.train_ppo_ray" in result.output
    assert not list(tmp_path.iterdir())
