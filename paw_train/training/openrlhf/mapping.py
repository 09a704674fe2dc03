"""Our settings -> the options of ``openrlhf.cli.train_ppo_ray``: every setting mapped, or refused.

``RULES`` has an entry for each setting of a run. It gives the options the setting becomes, or what
else reads it, and which values this engine cannot do. Nothing here imports OpenRLHF.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paw_train.algorithms.estimator import advantage_estimator
from paw_train.settings import Settings
from paw_train.settings.base import field_kinds, groups_of, is_group

FLASH_ATTENTION = "flash_attention_2"
"""the attention where ``model.attention`` is null"""

Options = dict[str, Any]
"""option name without dashes: its value; True: a switch that is on; None or False: left out"""


@dataclass(frozen=True)
class Rule:
    """The mapping of one setting."""

    note: str
    """in words, for readers of the plan and the docs"""
    options: Callable[[Any, Settings], Options] | None = None
    """(value, all settings) -> options of OpenRLHF; ``None``: our own classes read the setting"""
    refuse: Callable[[Any, Settings], str | None] | None = None
    """(value, all settings) -> why this engine cannot do it, and what to do instead"""


def _option(*names: str) -> Rule:
    text = ", ".join(f"--{name}" for name in names)
    return Rule(text, lambda value, _: dict.fromkeys(names, value))


def _only(note: str, allowed: Callable[[Any], bool], instead: str) -> Rule:
    return Rule(note, None, lambda value, _: None if allowed(value) else instead)


_AGENT = Rule("the agent executor, in each vLLM engine")
_MAKER = Rule("the experience maker: paw_train.algorithms.experience.prepare")
_LOSS = Rule("the actor trainer: paw_train.losses.objective.combined_loss")
_SHARDS = Rule("the experience maker: shards the update over the ranks")
_EVAL = Rule("the evaluation panel, run by the agent executor")
_UNUSED = Rule("belongs to an option that is not in use; ignored")
_RATE = Rule("the actor trainer: sets the rate of each update")


def _constant(settings: Settings) -> Options:
    """Options that follow from how this engine works, whatever the settings."""
    o, folder = settings.openrlhf, Path(settings.out) / settings.name
    return {
        # one sequence a rank and step, as OpenRLHF counts: our own rules split mini-batches
        "train.batch_size": o.ranks,
        "train.micro_batch_size": 1,
        "rollout.micro_batch_size": 1,
        "train.num_episodes": 1,
        "train.max_epochs": 1,
        # sums over micro-batches in float32, as in the local engine
        "ds.grad_accum_dtype": "fp32",
        "algo.kl.estimator": "k3",
        "algo.kl.use_loss": True,
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": 0.0,
        "actor.adam.betas": (0.9, 0.999),
        "data.prompt_dataset": str(folder / "episodes.jsonl"),
        "data.input_key": "input",
        "data.label_key": "label",
        "train.agent_func_path": str(Path(__file__).with_name("agent.py")),
        "ckpt.output_dir": str(folder / "checkpoints" / "model"),
        "ckpt.path": str(folder / "checkpoints" / "openrlhf"),
        "ckpt.load_enable": True,
        "ckpt.best_metric_key": "eval_panel_pass1" if settings.evaluation.every else "none",
        "logger.tensorboard_dir": (
            str(folder / "tensorboard") if "tensorboard" in settings.tracking else None
        ),
        # makes vLLM return log-probabilities of the tempered distribution; its loss is not used
        "algo.advantage.is_correction_level": "token",
    }


def _layout(colocate: str, settings: Settings) -> Options:
    o = settings.openrlhf
    return {
        "train.colocate_all": colocate == "all",
        "train.colocate_actor_ref": colocate == "actor_ref",
        "vllm.enable_sleep": colocate == "all",
        "ds.enable_sleep": colocate == "all",
        "vllm.num_engines": o.vllm_engines,
    }


def _replaceable(settings: Settings) -> Options:
    """Options that ``openrlhf.extra`` may give otherwise."""
    attention = settings.model.attention or FLASH_ATTENTION
    return {
        "ds.packing_samples": attention.startswith("flash_attention"),
        "vllm.enable_prefix_caching": True,
    }


def _validation(every: int, settings: Settings) -> Options:
    if not every:
        return {}
    folder = Path(settings.out) / settings.name
    return {
        "eval.dataset": str(folder / "panel.jsonl"),
        "eval.steps": every,
        "eval.n_samples_per_prompt": 1,
    }


def _estimator(name: str, settings: Settings) -> Options:
    # its own estimators are not used; this one asks for a critic, the other for nothing
    return {
        "algo.advantage.estimator": "gae" if advantage_estimator(name).needs_critic else "reinforce"
    }


def _whole_critic(name: str, settings: Settings) -> str | None:
    if not advantage_estimator(name).needs_critic or not settings.model.lora.rank:
        return None
    return (
        f"{name} would give the critic an adapter, too, and freeze its value head: use model.lora.rank=0, or "
        "engine=local."
    )


def _critic(value: Any, settings: Settings) -> Options:
    if not advantage_estimator(settings.algorithm.name).needs_critic:
        return {}
    critic, o = settings.algorithm.critic, settings.openrlhf
    return {
        "critic.num_nodes": o.nodes,
        "critic.num_gpus_per_node": o.gpus_per_node,
        "critic.adam.lr": critic.lr,
        "critic.adam.betas": (0.9, 0.999),
        "critic.max_norm": settings.optimizer.max_grad_norm,
        "critic.lr_scheduler": "constant",
        "critic.lr_warmup_ratio": 0.0,
        # the policy learns when the number of finished updates is above this
        "critic.freezing_steps": -1,
    }


def _no_path(value: str | None, _: Settings) -> str | None:
    if value is not None:
        return None
    return (
        "needs a pretrained model. Train a model from scratch with engine=local; its "
        "checkpoint folder can then be the path here."
    )


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "name": Rule("names the folder of the run"),
        "note": Rule("of the report"),
        "out": Rule("the folder of the run is in it"),
        "seed": _option("train.seed"),
        "threads": _only(
            "not read",
            lambda v: v is None,
            "is of one process. Set OMP_NUM_THREADS where the Ray cluster is started.",
        ),
        "updates": Rule("rows of the data set: one for each group of each update"),
        "checkpoint_every": _option("ckpt.save_steps"),
        "record": Rule("of one-machine runs; not read"),
        "tracking": Rule("trackers follow the run's files; tensorboard: --logger.tensorboard_dir"),
        "engine": Rule("chooses this engine"),
        "warm_starts": _only(
            "not read",
            lambda v: v is None,
            "is of the local engine. Give the folder of a warm start as model.path.",
        ),
        "env": _AGENT,
        "model.path": Rule(
            "--actor.model_name_or_path",
            lambda value, _: {"actor.model_name_or_path": value},
            _no_path,
        ),
        "model.revision": _only(
            "not read", lambda v: v is None, "is not known to OpenRLHF: give the folder of a copy."
        ),
        "model.scratch": _UNUSED,
        "model.device": _only(
            "Ray decides", lambda v: v in ("auto", "cuda"), "is decided by Ray: use auto."
        ),
        "model.dtype": Rule(
            "--ds.param_dtype",
            lambda value, _: {"ds.param_dtype": "bf16"},
            lambda v, _: (
                None
                if v == "bfloat16"
                else f"is {v!r}, but OpenRLHF's vLLM engines are bfloat16: use bfloat16."
            ),
        ),
        "model.attention": Rule(
            "--ds.attn_implementation",
            lambda value, _: {"ds.attn_implementation": value or FLASH_ATTENTION},
        ),
        "model.lora.base": _only(
            "not read",
            lambda v: v is None,
            "is of the local engine: give a whole model as model.path.",
        ),
        "model.lora.rank": Rule(
            "--ds.lora.rank; --ds.lora.alpha is twice as much",
            lambda value, _: {"ds.lora.rank": value, "ds.lora.alpha": 2 * value or None},
            lambda v, s: (
                None
                if v == 0 or s.openrlhf.zero_stage == 2
                else "above 0 needs the weights whole, to send vLLM the adapter worked into them: use "
                "openrlhf.zero_stage=2 (an adapter's optimiser is small)."
            ),
        ),
        "model.gradient_checkpointing": _option("actor.gradient_checkpointing_enable"),
        "model.reference_offload": _option("ref.offload"),
        "cloning.episodes": _only(
            "not read",
            lambda v: v == 0,
            "above 0 is of the local engine. Make the warm start there (updates=0) and give its "
            "folder as model.path.",
        ),
        "cloning": _UNUSED,
        "rollout.groups": _option("rollout.batch_size"),
        "rollout.group_size": _option("rollout.n_samples_per_prompt"),
        "rollout.temperature": _option("rollout.temperature"),
        "rollout.top_p": _option("rollout.top_p"),
        "rollout.top_k": _AGENT,
        "rollout.max_response_tokens": _option("rollout.max_new_tokens"),
        "rollout.max_context_tokens": _option("data.max_len"),
        "rollout.stop_at_tags": _AGENT,
        "rollout.episode_seconds": _AGENT,
        "rollout.engine": Rule("vLLM samples here, whatever its value"),
        "rollout.vllm.gpu_memory": Rule(
            "--vllm.gpu_memory_utilization; null: 0.5",
            lambda _, settings: {"vllm.gpu_memory_utilization": settings.vllm_share},
        ),
        "rollout.vllm.extra": _only(
            "not read",
            lambda v: not v,
            "is of the local engine; vLLM's options are openrlhf.extra here.",
        ),
        "rollout.branching.branches": _only(
            "not read",
            lambda v: v == 1,
            "above 1 is not done here yet: OpenRLHF samples each episode on its own, and its workers keep no "
            "states to go back to. Use 1, or engine=local.",
        ),
        "rollout.branching": _UNUSED,
        "algorithm.name": Rule(_MAKER.note, _estimator, _whole_critic),
        "algorithm.normalize": _MAKER,
        "algorithm.weighting": _MAKER,
        "algorithm.similarity": _MAKER,
        "algorithm.statistics": _MAKER,
        "algorithm.penalty": _MAKER,
        "algorithm.gamma": _MAKER,
        "algorithm.lam": _MAKER,
        "algorithm.level": _MAKER,
        "algorithm.group_baseline": _MAKER,
        "algorithm.dynamic_sampling": Rule("the sampling of an update's episodes"),
        "algorithm.critic": Rule("--critic.*", _critic),
        "objective.kl_coef": _option("algo.kl.init_coef"),
        "objective.kl_in": _MAKER,
        "objective": _LOSS,
        "world_model.entropy": _only(
            _MAKER.note,
            lambda v: v == "sampled",
            "is not done here yet for the full vocabulary: use sampled, the paper's.",
        ),
        "world_model.placebo": _only(
            "not read", lambda v: not v, "is done by the local engine alone: use engine=local."
        ),
        "world_model": _LOSS,
        "world_model_learning.method": _only(
            "not read",
            lambda v: v == "off",
            "is of the local engine. Run the stages there and give the folder of their model as "
            "model.path.",
        ),
        "world_model_learning": _UNUSED,
        "optimizer.lr": _option("actor.adam.lr"),
        "optimizer.matrix_lr": _only(
            "not read",
            lambda v: v is None,
            "is not done here: Muon needs whole matrices, and ZeRO shards them. Use null (AdamW).",
        ),
        "optimizer.schedule": _RATE,
        "optimizer.warmup_updates": _RATE,
        "optimizer.weight_decay": Rule(
            "--actor.adam.weight_decay; OpenRLHF leaves biases and norms out",
            lambda value, _: {"actor.adam.weight_decay": value},
        ),
        "optimizer.max_grad_norm": _option("actor.max_norm"),
        "optimizer.minibatches": _SHARDS,
        "optimizer.minibatch_size": _SHARDS,
        "optimizer.micro_batch_tokens": _SHARDS,
        "optimizer.measure_gradients": _only(
            "not read",
            lambda v: not v,
            "true is not done here: gradients are sharded over the GPUs. Use false.",
        ),
        "evaluation.every": Rule("--eval.steps and --eval.dataset", _validation),
        "evaluation.temperature": _option("eval.temperature"),
        "evaluation.selection_split": _EVAL,
        "evaluation.selection_tasks": _EVAL,
        "evaluation.seed": _EVAL,
        "evaluation.split": Rule("paw eval, after the run"),
        "evaluation.tasks": Rule("paw eval, after the run"),
        "evaluation.plays": Rule("paw eval, after the run"),
        "evaluation.batch": Rule("vLLM decides; not read"),
        "openrlhf.nodes": _option("actor.num_nodes", "ref.num_nodes"),
        "openrlhf.gpus_per_node": _option("actor.num_gpus_per_node", "ref.num_gpus_per_node"),
        "openrlhf.colocate": Rule(
            "--train.colocate_all, --train.colocate_actor_ref and both sleep modes", _layout
        ),
        "openrlhf.engines": Rule("--vllm.num_engines, by openrlhf.colocate"),
        "openrlhf.tensor_parallel": _option("vllm.tensor_parallel_size"),
        "openrlhf.environment_workers": Rule("the processes that run episodes"),
        "openrlhf.zero_stage": _option("ds.zero_stage"),
        "openrlhf.adam_offload": _option("ds.adam_offload"),
        "openrlhf.checksum_every": Rule(
            "the trainer, after weights were sent to vLLM",
            None,
            lambda v, s: (
                None
                if not v or s.openrlhf.tensor_parallel == 1
                else "above 0 compares whole models, and openrlhf.tensor_parallel above 1 has parts of "
                "them: use null or 0 there."
            ),
        ),
        "openrlhf.old_logprobs": _MAKER,
        "openrlhf.max_staleness": Rule(
            "the samples generator: rollouts in a thread beside training",
            None,
            lambda v, s: (
                None
                if not v or s.openrlhf.colocate != "all"
                else "above 0 samples while the policy is trained, and openrlhf.colocate=all has both on the "
                "same GPUs: use openrlhf.colocate=actor_ref."
            ),
        ),
        "openrlhf.restarts": Rule("what starts the run"),
        "openrlhf.gpu": Rule("the plan"),
        "openrlhf.extra": Rule("as given"),
    }
)
"""dotted name of a setting, or of a group of them: its rule; the longest name that fits counts"""


NOT_DONE = (
    "algo.dynamic_filtering_enable",
    "ds.ring_attn_size",
    "ds.tensor_parallel_size",
    "train.async_enable",
    "train.dynamic_batch_enable",
    "train.partial_rollout_enable",
)
"""options of OpenRLHF that change what our classes rely on"""


def setting_names() -> Iterator[str]:
    """The dotted names of all settings, in order."""
    for group, cls in groups_of(Settings):
        kinds = field_kinds(cls)
        yield from (f"{group}.{n}".lstrip(".") for n in kinds if not is_group(kinds[n]))


def rule_of(name: str) -> Rule:
    """The rule of a setting: its own, or that of a group it is in."""
    at = name
    while at not in RULES:
        at, dot, _ = at.rpartition(".")
        if not dot:
            raise KeyError(f"The setting {name!r} has no rule for engine: openrlhf.")
    return RULES[at]


def require_possible(settings: Settings) -> None:
    """Raises a ``ValueError`` that names every setting that this engine cannot do."""
    problems = []
    for name in setting_names():
        refuse = rule_of(name).refuse
        why = refuse(_value(settings, name), settings) if refuse else None
        if why is not None:
            problems.append(f"{name} {why}")
    episodes = settings.rollout.groups * settings.rollout.group_size
    if episodes < settings.openrlhf.ranks:
        problems.append(
            f"rollout.groups * rollout.group_size is {episodes}, but every one of the "
            f"{settings.openrlhf.ranks} ranks needs an episode: use fewer GPUs."
        )
    if problems:
        unique = list(dict.fromkeys(problems))
        raise ValueError("engine: openrlhf cannot run these settings:\n- " + "\n- ".join(unique))


def options(settings: Settings) -> Options:
    """The options of ``openrlhf.cli.train_ppo_ray`` that the settings stand for."""
    require_possible(settings)
    result = _constant(settings)
    for name in setting_names():
        make = rule_of(name).options
        if make is not None:
            result |= make(_value(settings, name), settings)
    for name, value in settings.openrlhf.extra.items():
        if name in NOT_DONE:
            instead = " Use openrlhf.max_staleness." if name == "train.async_enable" else ""
            raise ValueError(
                f"openrlhf.extra.{name}: our classes do not support it (nor {', '.join(NOT_DONE)}).{instead}"
            )
        if name in result:
            raise ValueError(
                f"openrlhf.extra.{name}: this option follows from other settings of the recipe "
                f"(now {result[name]!r}); change those."
            )
        result[name] = value
    return _replaceable(settings) | result


def arguments(chosen: Options) -> list[str]:
    """Options as the arguments of a command line; switches that are off are left out."""
    words: list[str] = []
    for name, value in sorted(chosen.items()):
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words += [str(v) for v in (value if isinstance(value, list | tuple) else [value])]
    return words


def command_line(settings: Settings) -> str:
    """The program that the settings stand for, one option a line."""
    lines: list[str] = ["python -m openrlhf.cli.train_ppo_ray"]
    for word in arguments(options(settings)):
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n    ".join(lines)


def _value(settings: Any, name: str) -> Any:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings
