"""Our settings -> the options of ``openrlhf.cli.train_ppo_ray``, and the environment of its processes.

A setting is an option under another name (``NAMES``), decides others (``_derived``), has values that this
engine cannot do (``REFUSED``), or is read by our own classes (``READ``); any other is refused unless it is
at its default (``INSTEAD`` says what to do then). The processes that Ray starts read the settings from an
environment variable. Nothing here imports OpenRLHF.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paw_train.algorithms.estimator import advantage_estimator
from paw_train.settings import Settings
from paw_train.settings.base import flatten

FLASH_ATTENTION = "flash_attention_2"
"""the attention where ``model.attention`` is null"""

Options = dict[str, Any]
"""option name without dashes: its value; True: a switch that is on; None or False: left out"""

NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "seed": ("train.seed",),
        "checkpoint_every": ("ckpt.save_steps",),
        "model.path": ("actor.model_name_or_path",),
        "model.lora.rank": ("ds.lora.rank",),
        "model.gradient_checkpointing": ("actor.gradient_checkpointing_enable",),
        "model.reference_offload": ("ref.offload",),
        "rollout.groups": ("rollout.batch_size",),
        "rollout.group_size": ("rollout.n_samples_per_prompt",),
        "rollout.temperature": ("rollout.temperature",),
        "rollout.top_p": ("rollout.top_p",),
        "rollout.max_response_tokens": ("rollout.max_new_tokens",),
        "rollout.max_context_tokens": ("data.max_len",),
        "objective.kl_coef": ("algo.kl.init_coef",),
        "optimizer.lr": ("actor.adam.lr",),
        "optimizer.weight_decay": ("actor.adam.weight_decay",),  # except of biases and norms
        "optimizer.max_grad_norm": ("actor.max_norm",),
        "evaluation.temperature": ("eval.temperature",),
        "openrlhf.nodes": ("actor.num_nodes", "ref.num_nodes"),
        "openrlhf.gpus_per_node": ("actor.num_gpus_per_node", "ref.num_gpus_per_node"),
        "openrlhf.tensor_parallel": ("vllm.tensor_parallel_size",),
        "openrlhf.zero_stage": ("ds.zero_stage",),
        "openrlhf.adam_offload": ("ds.adam_offload",),
    }
)
"""settings (dotted) that are options, by the names that these have"""


def _derived(settings: Settings) -> Options:
    """Options that follow from several settings, or from how this engine works."""
    o, folder = settings.openrlhf, Path(settings.out) / settings.name
    has_critic = advantage_estimator(settings.algorithm.name).needs_critic
    found: Options = {
        # one sequence a rank and step, as OpenRLHF counts: our own rules split mini-batches
        "train.batch_size": o.ranks,
        "train.micro_batch_size": 1,
        "rollout.micro_batch_size": 1,
        "train.num_episodes": 1,
        "train.max_epochs": 1,
        "train.colocate_all": o.colocate == "all",
        "train.colocate_actor_ref": o.colocate == "actor_ref",
        "ds.enable_sleep": o.colocate == "all",
        "ds.param_dtype": "bf16",
        "ds.attn_implementation": settings.model.attention or FLASH_ATTENTION,
        "ds.lora.alpha": 2 * settings.model.lora.rank or None,
        # sums over micro-batches in float32, as in the local engine
        "ds.grad_accum_dtype": "fp32",
        "vllm.enable_sleep": o.colocate == "all",
        "vllm.num_engines": o.vllm_engines,
        "vllm.gpu_memory_utilization": settings.vllm_share,
        # its own estimators are not used; this one asks for a critic, the other for nothing
        "algo.advantage.estimator": "gae" if has_critic else "reinforce",
        # makes vLLM return log-probabilities of the tempered distribution; its loss is not used
        "algo.advantage.is_correction_level": "token",
        "algo.kl.estimator": "k3",
        "algo.kl.use_loss": True,
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": 0.0,
        "actor.adam.betas": (0.9, 0.999),
        "data.prompt_dataset": str(folder / "episodes.jsonl"),
        "data.input_key": "input",
        "data.label_key": "label",
        # asks for no reward model; no file is read, because episodes run in processes of ours
        "train.agent_func_path": "paw.py",
        "ckpt.output_dir": str(folder / "checkpoints" / "model"),
        "ckpt.path": str(folder / "checkpoints" / "openrlhf"),
        "ckpt.load_enable": True,
        "ckpt.best_metric_key": "eval_panel_pass1" if settings.evaluation.every else "none",
        "logger.tensorboard_dir": (
            str(folder / "tensorboard") if "tensorboard" in settings.tracking else None
        ),
    }
    if settings.evaluation.every:
        found |= {
            "eval.dataset": str(folder / "panel.jsonl"),
            "eval.steps": settings.evaluation.every,
            "eval.n_samples_per_prompt": 1,
        }
    if has_critic:
        found |= {
            "critic.num_nodes": o.nodes,
            "critic.num_gpus_per_node": o.gpus_per_node,
            "critic.adam.lr": settings.algorithm.critic.lr,
            "critic.adam.betas": (0.9, 0.999),
            "critic.max_norm": settings.optimizer.max_grad_norm,
            "critic.lr_scheduler": "constant",
            "critic.lr_warmup_ratio": 0.0,
            # the policy learns when the number of finished updates is above this
            "critic.freezing_steps": -1,
        }
    return found


REFUSED: Mapping[str, tuple[Callable[[Settings], bool], str]] = MappingProxyType(
    {
        "model.path": (
            lambda s: s.model.path is None,
            "needs a pretrained model. Train a model from scratch with engine=local; its "
            "checkpoint folder can then be the path here.",
        ),
        "model.device": (
            lambda s: s.model.device not in ("auto", "cuda"),
            "is decided by Ray: use auto.",
        ),
        "model.dtype": (
            lambda s: s.model.dtype != "bfloat16",
            "is another than that of OpenRLHF's vLLM engines: use bfloat16.",
        ),
        "model.lora.rank": (
            lambda s: s.model.lora.rank > 0 and s.openrlhf.zero_stage != 2,
            "above 0 needs the weights whole, to send vLLM the adapter worked into them: use "
            "openrlhf.zero_stage=2 (an adapter's optimiser is small).",
        ),
        "algorithm.name": (
            lambda s: s.model.lora.rank > 0 and advantage_estimator(s.algorithm.name).needs_critic,
            "has a critic, which would get an adapter and a frozen value head: use model.lora.rank=0, or "
            "engine=local.",
        ),
        "openrlhf.checksum_every": (
            lambda s: bool(s.openrlhf.checksum_every) and s.openrlhf.tensor_parallel > 1,
            "above 0 compares whole models, and openrlhf.tensor_parallel above 1 has parts of "
            "them: use null or 0 there.",
        ),
    }
)
"""settings (dotted) some of whose values this engine cannot do: whether it has one, and what to do instead"""
INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "threads": "set OMP_NUM_THREADS where the Ray cluster is started",
        "warm_starts": "give the folder of a warm start as model.path",
        "model.revision": "give the folder of a copy as model.path",
        "model.lora.base": "give a whole model as model.path",
        "cloning.episodes": "make the warm start with engine=local updates=0, and give it as model.path",
        "rollout.vllm.extra": "vLLM's options are openrlhf.extra here",
        "world_model.entropy": "use sampled, the paper's",
        "world_model.placebo": "use engine=local",
        "optimizer.matrix_lr": "Muon needs whole matrices, and ZeRO shards them: use null (AdamW)",
        "optimizer.measure_gradients": "gradients are sharded over the GPUs: use false",
    }
)
"""settings (dotted) of the local engine, and what to do here"""
READ = (
    *("name", "note", "out", "updates", "tracking", "engine", "env", "record"),
    *("model.attention", "model.scratch", "cloning", "algorithm", "objective", "world_model"),
    *("rollout.top_k", "rollout.stop_at_tags", "rollout.vllm.gpu_memory"),
    "rollout.engine",  # vLLM samples, whatever it says
    "world_model_learning",  # Settings refuses it here
    *("optimizer.schedule", "optimizer.warmup_updates"),
    *("optimizer.minibatches", "optimizer.minibatch_size", "optimizer.micro_batch_tokens"),
    *("evaluation.every", "evaluation.selection_split", "evaluation.selection_tasks"),
    *("evaluation.seed", "evaluation.batch"),
    *("evaluation.split", "evaluation.tasks", "evaluation.plays"),  # by paw eval, after the run
    *("openrlhf.colocate", "openrlhf.engines", "openrlhf.environment_workers"),
    *("openrlhf.old_logprobs", "openrlhf.gpu", "openrlhf.extra"),
)
"""settings and groups (dotted) that ``_derived`` or our own classes read, or that have no use here"""

NOT_DONE = (
    "algo.dynamic_filtering_enable",
    "ds.ring_attn_size",
    "ds.tensor_parallel_size",
    "train.async_enable",
    "train.dynamic_batch_enable",
    "train.partial_rollout_enable",
)
"""options of OpenRLHF that change what our classes rely on"""


def setting_names() -> list[str]:
    """The dotted names of all settings."""
    return [name for name, _ in flatten(Settings().to_dict())]


def require_possible(settings: Settings) -> None:
    """Raises a ``ValueError`` that names every setting that this engine cannot do."""
    problems = [
        f"{name} {instead}" for name, (fails, instead) in REFUSED.items() if fails(settings)
    ]
    known, default = (*NAMES, *REFUSED, *READ), Settings()
    for name in setting_names():
        mapped = name not in INSTEAD and any(f"{name}.".startswith(f"{k}.") for k in known)
        if not mapped and _value(settings, name) != _value(default, name):
            instead = INSTEAD.get(name, "leave it out, or use engine=local")
            problems.append(f"{name} is not read here: {instead}.")
    episodes = settings.rollout.groups * settings.rollout.group_size
    if episodes < settings.openrlhf.ranks:
        problems.append(
            f"rollout.groups * rollout.group_size is {episodes}, but every one of the "
            f"{settings.openrlhf.ranks} ranks needs an episode: use fewer GPUs."
        )
    if problems:
        raise ValueError("engine: openrlhf cannot run these settings:\n- " + "\n- ".join(problems))


def options(settings: Settings) -> Options:
    """The options of ``openrlhf.cli.train_ppo_ray`` that the settings stand for."""
    require_possible(settings)
    result = _derived(settings)
    for name, named in NAMES.items():
        result |= dict.fromkeys(named, _value(settings, name))
    for name, value in settings.openrlhf.extra.items():
        if name in NOT_DONE:
            raise ValueError(
                f"openrlhf.extra.{name}: our classes do not support it (nor {', '.join(NOT_DONE)})."
            )
        if name in result:
            raise ValueError(
                f"openrlhf.extra.{name}: this option follows from other settings of the recipe "
                f"(now {result[name]!r}); change those."
            )
        result[name] = value
    attention = settings.model.attention or FLASH_ATTENTION
    replaceable = {
        "ds.packing_samples": attention.startswith("flash_attention"),
        "vllm.enable_prefix_caching": True,
    }
    return replaceable | result


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


def _value(settings: Settings, name: str) -> Any:
    return reduce(getattr, name.split("."), settings)


# --- the processes that Ray starts ----------------------------------------------------------------

VARIABLE = "PAW_OPENRLHF_SETTINGS"

VLLM = {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "0"}
"""vLLM 0.29's first model runner and Ray executor: the second ones, its defaults on a GPU, were never run
with the weight updates of this engine. A variable that is set where the run starts is taken as it is"""


def worker_environment(settings: Settings) -> dict[str, str]:
    """Environment variables that every process of the run needs."""
    chosen = {name: os.environ.get(name, value) for name, value in VLLM.items()}
    return {VARIABLE: json.dumps(settings.to_dict()), **chosen}


def worker_settings() -> Settings:
    """The settings of the run that this process belongs to."""
    return Settings.read(json.loads(os.environ[VARIABLE]))
