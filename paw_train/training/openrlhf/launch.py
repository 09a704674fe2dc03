"""Starts a run on a Ray cluster (``engine: openrlhf``)."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from paw_gym.internals.files import naming_full_disk
from paw_gym.internals.locks import only_process, require_idle
from paw_train.reporting.compare.runs import updates_done
from paw_train.settings import Settings
from paw_train.training.cluster_options import (
    arguments,
    options,
    require_possible,
    worker_environment,
)
from paw_train.training.openrlhf import TESTED_VERSION
from paw_train.training.openrlhf.episodes import write_data_sets
from paw_train.training.openrlhf.run_records import cluster_tracking
from paw_train.training.plan import gpu_memory, machine_memory, require_fit


def require_openrlhf() -> None:
    """Raises unless OpenRLHF is installed, in the version that the subclasses are made for."""
    if importlib.util.find_spec("openrlhf") is None:
        raise ModuleNotFoundError(
            "engine: openrlhf needs OpenRLHF, vLLM and DeepSpeed on a machine with CUDA: "
            "pip install '.[openrlhf]' in your clone of PaW-Gym",
            name="openrlhf",
        )
    found = version("openrlhf")
    if found != TESTED_VERSION:
        raise ValueError(
            f"OpenRLHF {found} is installed, but this engine overrides methods of "
            f"{TESTED_VERSION}: pip install openrlhf=={TESTED_VERSION}"
        )


def require_no_code(model: str) -> None:
    """Refuses a model that brings code of its own: OpenRLHF would run it, and has no switch for that."""
    from transformers.utils import cached_file

    quiet = {
        f"_raise_exceptions_for_{what}": False
        for what in ("missing_entries", "connection_errors", "gated_repo")
    }
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        file = cached_file(model, name, **quiet)
        if file is not None and "auto_map" in json.loads(Path(file).read_text(encoding="utf-8")):
            raise ValueError(
                f"The model {model!r} brings code of its own ({name}: auto_map), which OpenRLHF would run: "
                "use a model that transformers knows, or save it as one."
            )


def cluster_settings(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings as this engine will use them, after all checks that can be made before a run begins."""
    from paw_train.training.preparation import checked_settings

    require_possible(settings)
    require_openrlhf()
    require_no_code(str(settings.model.path))
    settings = checked_settings(settings, report)
    # of a cluster that is joined, the machines' own memory is not known
    host = None if "RAY_ADDRESS" in os.environ else machine_memory()
    require_fit(settings, gpu_memory(settings.openrlhf.gpu), host)
    return settings


def train(settings: Settings, fresh: bool = False, quiet: bool = False) -> Path:
    """Trains by given settings; see ``paw_train.training.local.train``.

    Ray is started here, or joined if ``RAY_ADDRESS`` says there is a cluster.
    """
    from paw_train.training.local import claim_folder

    settings = cluster_settings(settings, print)
    # workers have other working directories
    settings = settings.replace(out=str(Path(settings.out).resolve()))
    folder = Path(settings.out) / settings.name
    require_idle(folder)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    claim_folder(folder, settings)
    saved = (folder / "checkpoints" / "model" / "config.json").exists()
    if saved and updates_done(folder) >= settings.updates:
        print(f"{folder} is finished; --fresh starts it over.")
        return folder
    with only_process(folder), naming_full_disk(folder):
        write_data_sets(settings, folder)
        _run(settings)
        with cluster_tracking(settings) as tracking:
            tracking.finish()
    return folder


def _run(settings: Settings) -> None:
    """Runs OpenRLHF's own program with our classes in the places of its own."""
    import ray

    if not ray.is_initialized():
        start_ray(settings)
    before, sys.argv = sys.argv, ["train_ppo_ray", *arguments(options(settings))]
    try:
        put_in_place()
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    finally:
        sys.argv = before
        ray.shutdown()


def start_ray(settings: Settings) -> None:
    """Starts Ray here, or joins the cluster that ``RAY_ADDRESS`` names."""
    import ray

    ray.init(runtime_env={"env_vars": worker_environment(settings)})


def put_in_place() -> None:
    """Binds our classes to the names by which OpenRLHF's program finds its own."""
    import ray
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic, vllm_engine

    from paw_train.training.openrlhf.ranks import PaWCriticActor, PaWPolicyActor, PaWReferenceActor
    from paw_train.training.openrlhf.trainer import PaWTrainer
    from paw_train.training.openrlhf.vllm_worker import PaWRollout

    ppo_trainer.PPOTrainer = ray.remote(PaWTrainer)
    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(PaWPolicyActor)
    launcher.ReferenceModelActor = ray.remote(num_gpus=1)(PaWReferenceActor)
    ppo_critic.CriticModelActor = ray.remote(num_gpus=1)(PaWCriticActor)
    vllm_engine.RolloutRayActor = ray.remote(PaWRollout)
