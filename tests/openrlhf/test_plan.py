"""Runs that do not fit are refused; published recipes fit their GPUs (``paw train --plan``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paw_train.cli.program import app
from paw_train.settings import Settings, load_settings, overridden, recipe_names
from paw_train.training import local
from paw_train.training.memory import KNOWN, model_shape
from paw_train.training.plan import GPUS, DoesNotFitError, make_plan, render, require_fit

PUBLISHED = [n for n in recipe_names() if ("qwen" in n or "llama" in n) and "tau2" not in n]


def _settings(*overrides: str) -> Settings:
    return load_settings("alfworld_qwen2.5-1.5b_gigpo_paw", ["engine=openrlhf", *overrides])


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("nodes", [1, 8])
def test_published_recipes_fit_8_and_64_gpus(name: str, nodes: int) -> None:
    settings = load_settings(name, ["engine=openrlhf", f"openrlhf.nodes={nodes}"])
    plan = make_plan(settings)
    assert plan.gpus == 8 * nodes
    assert f"--actor.model_name_or_path {settings.model.path}" in render(plan)
    assert not plan.problems
    assert plan.resident is not None
    assert plan.resident >= 8
    for phase in plan.phases:  # allocators leave gaps, and formulas are estimates
        assert phase.memory <= plan.available - 5, phase


def test_every_process_has_a_context_and_zero2_keeps_a_micro_batchs_averages() -> None:
    """14B as it was published before: 71.0 GiB by the old plan, with no room for either."""
    name, changes = "webshop_qwen2.5-14b_grpo_paw", ["engine=openrlhf", "objective.entropy_coef=0"]
    before = ["openrlhf.zero_stage=2", "model.reference_offload=true"]
    training, _, rollout = make_plan(load_settings(name, [*changes, *before])).phases
    assert training.parts["averages"] == pytest.approx(2 * 14_770_033_664 / 8 / 2**30)
    assert training.parts["reserved"] == rollout.parts["reserved"] == 3 * 1.5  # vLLM's, too
    assert training.memory == pytest.approx(77, abs=1)
    split, *_ = make_plan(load_settings(name, changes)).phases
    assert "averages" not in split.parts
    assert split.memory < 60
    alone = make_plan(_settings("openrlhf.colocate=none")).phases
    assert {phase.parts["reserved"] for phase in alone} == {1.5}
    beside = make_plan(_settings("openrlhf.colocate=actor_ref")).phases
    reserved = {phase.name: phase.parts["reserved"] for phase in beside}
    assert reserved == {"training": 3.0, "scoring": 3.0, "rollout": 1.5}


def test_a_critic_is_as_large_as_the_policy() -> None:
    plan = make_plan(_settings("algorithm.name=ppo", "openrlhf.colocate=actor_ref"))
    phases = {phase.name: phase for phase in plan.phases}
    policy, critic = phases["training"].parts, phases["critic"].parts
    assert critic["optimiser"] == policy["optimiser"]
    assert critic["activations"] < policy["activations"]  # it has no LM head
    assert plan.gpus == 8 + 8 + 1  # it has GPUs of its own, as vLLM does
    assert make_plan(_settings("algorithm.name=ppo")).gpus == 8


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
    ],
)
def test_shapes_count_the_published_numbers_of_parameters(model: str, parameters: int) -> None:
    assert KNOWN[model].parameters == parameters


def test_a_folder_tells_its_shape_by_its_config(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**size, **heads, tie_word_embeddings=False)
    config.save_pretrained(tmp_path)
    shape = model_shape(str(tmp_path))
    assert shape.parameters == sum(p.numel() for p in Qwen2ForCausalLM(config).parameters())
    for text, reason in (("{}", "num_attention_heads"), ("[]", "list"), ("", "Expecting value")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(
            ValueError, match=rf"config\.json does not describe a model: .*{reason}"
        ):
            model_shape(str(tmp_path))


def test_states_follow_the_zero_stage() -> None:
    size, gib = 1_543_714_304, 2**30
    policy = make_plan(_settings()).phases[0].parts
    assert policy["weights"] == pytest.approx(2 * size / gib)
    assert policy["optimiser"] == pytest.approx(12 * size / 8 / gib)
    assert policy["gradients"] == pytest.approx(4 * size / 8 / gib)
    assert policy["averages"] == pytest.approx(2 * size / 8 / gib)
    split = make_plan(_settings("openrlhf.zero_stage=3", "openrlhf.adam_offload=true"))
    parts = split.phases[0].parts
    assert parts["weights"] == pytest.approx(2 * size / 8 / gib)
    assert "optimiser" not in parts
    assert split.host["optimiser"] == pytest.approx(12 * size / gib)
    half = make_plan(_settings("optimizer.micro_batch_tokens=8192")).phases[0].parts
    assert half["activations"] < 0.85 * policy["activations"]


def test_one_process_holds_everything_on_one_gpu() -> None:
    size, gib = 1_543_714_304, 2**30
    name = "webshop_qwen2.5-1.5b_ppo_paw"
    plan = make_plan(load_settings(name))
    assert plan.gpus == 1 and "openrlhf" not in render(plan)
    phases = {phase.name: phase.parts for phase in plan.phases}
    assert phases["training"]["optimiser"] == pytest.approx(12 * size / gib)
    assert phases["training"]["critic"] == pytest.approx(14 * size / gib)
    assert phases["training"]["gradients"] == pytest.approx(4 * size / gib)
    assert phases["rollout"]["cache"] > 0
    adapter = load_settings(name, ["algorithm.name=grpo", "model.lora.rank=16"])
    parts = make_plan(adapter).phases[0].parts
    assert "reference" not in parts
    assert parts["optimiser"] < 0.02 * phases["training"]["optimiser"]


@pytest.mark.parametrize(
    ("colocate", "kl", "gpus"),
    [("all", 0.01, 8), ("actor_ref", 0.01, 10), ("none", 0.01, 18), ("none", 0.0, 10)],
)
def test_gpus_add_up_by_layout(colocate: str, kl: float, gpus: int) -> None:
    layout = [] if colocate == "all" else ["openrlhf.engines=2"]
    plan = make_plan(_settings(f"openrlhf.colocate={colocate}", f"objective.kl_coef={kl}", *layout))
    assert plan.gpus == gpus
    assert ("scoring" in [phase.name for phase in plan.phases]) == (kl > 0)


def test_what_does_not_fit_is_refused_with_settings_that_would() -> None:
    settings = _settings("model.path=Qwen/Qwen2.5-14B-Instruct", "openrlhf.gpu=a100-40g")
    plan = make_plan(settings)
    assert any("training phase needs" in problem for problem in plan.problems)
    assert any("does not hold its weights" in problem for problem in plan.problems)
    text = render(plan)
    assert "DOES NOT FIT" in text
    changes = plan.remedy().removeprefix("It fits with ").rstrip(".").split()
    wanted = overridden(settings.to_dict(), changes, "test")
    assert not make_plan(wanted).problems
    with pytest.raises(DoesNotFitError, match="training phase.*It fits with"):
        require_fit(settings, GPUS["a100-40g"])
    assert "DOES NOT FIT" not in render(make_plan(_settings("openrlhf.gpu=h200")))
    plan = make_plan(_settings("rollout.vllm.gpu_memory=0.03"))
    assert plan.remedy() == "It fits with openrlhf.tensor_parallel=4."


def test_the_machines_own_memory_counts() -> None:
    alone = load_settings("alfworld_qwen2.5-7b_grpo_paw", ["model.lora.rank=16"])
    offloaded = ["engine=openrlhf", "model.reference_offload=true"]
    cluster = load_settings("webshop_qwen2.5-14b_grpo_paw", offloaded)
    for settings, needed, has in ((alone, 14, 8.0), (cluster, 468, 256.0)):
        require_fit(settings, GPUS["h200"], 8 * has)
        with pytest.raises(DoesNotFitError, match=f"has to hold {needed} GiB .* and has {has:.0f}"):
            require_fit(settings, GPUS["h200"], has)


def test_models_of_unknown_size_pass() -> None:
    require_fit(load_settings("smoke"), 0.1)
    require_fit(load_settings("smoke", ["model.path=someone/model"]), 0.1)


def test_a_run_on_a_gpu_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "memory_of", lambda device: 24.0)
    monkeypatch.setattr(local, "Run", None)  # what loads the model
    settings = load_settings("llm_full", ["model.path=Qwen/Qwen2.5-7B-Instruct", f"out={tmp_path}"])
    with pytest.raises(DoesNotFitError, match="training phase"):
        local.train(settings, quiet=True)
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    out = f"out={tmp_path / 'runs'}"
    recipe = "alfworld_qwen2.5-1.5b_gigpo_paw"
    result = CliRunner().invoke(app, ["train", recipe, "engine=openrlhf", out, "--plan"])
    assert result.exit_code == 0
    assert "8 x h100, 1.54 billion parameters" in result.output
    assert "python -m openrlhf.cli.train_ppo_ray" in result.output
    assert not list(tmp_path.iterdir())
