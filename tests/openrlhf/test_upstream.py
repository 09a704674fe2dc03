"""Fails when a method of OpenRLHF that we override or rely on has changed.

Look at what changed, adapt ours, then write the new hashes: python tests/openrlhf/test_upstream.py
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("upstream.json")
RELIED_ON = {
    "cli/train_ppo_ray.py": ["train"],
    "models/actor.py": ["Actor.forward"],
    "models/ring_attn_utils.py": ["unpad_and_slice_tensor"],
    "models/model.py": ["get_llm_for_sequence_regression", "_get_critic_model"],
    "trainer/ppo_trainer.py": [
        "BasePPOTrainer.train_step",
        "BasePPOTrainer.ppo_train",
        "BasePPOTrainer.save_best_checkpoint",
        "BasePPOTrainer.save_logs_and_checkpoints",
        "BasePPOTrainer._compute_rollout_stats",
        "BasePPOTrainer.init_checkpoint_states",
        "PPOTrainer.__init__",
        "PPOTrainer.fit",
        "PPOTrainer.evaluate",
        "compute_eval_metrics",
        "prepare_datasets",
    ],
    "trainer/ppo_utils/experience_maker.py": [
        "RemoteExperienceMaker.__init__",
        "RemoteExperienceMaker.make_experience_batch",
        "RemoteExperienceMaker.make_experience",
    ],
    "trainer/ppo_utils/samples_generator.py": [
        "SamplesGenerator.__init__",
        "SamplesGenerator.generate_samples",
        "SamplesGenerator.generate_eval_samples",
        "SamplesGenerator._generate_vllm",
        "_collect_prompt_batch",
        "SamplesGenerator._process_response_into_experience",
    ],
    "trainer/ray/launcher.py": [
        "BaseModelActor.execute_batch",
        "RayActorGroup.async_run_method_batch",
        "ReferenceModelActor.forward",
        "ReferenceModelActor.init_model_from_pretrained",
    ],
    "trainer/ray/ppo_actor.py": [
        "ActorPPOTrainer.__init__",
        "ActorPPOTrainer.ppo_train",
        "ActorPPOTrainer.training_step",
        "ActorPPOTrainer.broadcast_to_vllm",
        "PolicyModelActor.init_model_from_pretrained",
        "PolicyModelActor.append",
        "PolicyModelActor.fit",
        "PolicyModelActor.forward",
        "PolicyModelActor.save_checkpoint",
    ],
    "trainer/ray/ppo_critic.py": [
        "CriticPPOTrainer.__init__",
        "CriticPPOTrainer.ppo_train",
        "CriticPPOTrainer.training_step",
        "CriticModelActor.init_model_from_pretrained",
        "CriticModelActor.forward",
        "CriticModelActor.append",
        "CriticModelActor.fit",
        "CriticModelActor.save_checkpoint",
    ],
    "trainer/ray/vllm_engine.py": [
        "RolloutRayActor.__init__",
        "RolloutRayActor.generate",
        "RolloutRayActor.generate_responses",
        "create_vllm_engines",
    ],
    "trainer/ray/vllm_worker_wrap.py": [
        "WorkerWrap.init_process_group",
        "WorkerWrap.update_weight",
    ],
    "utils/agent.py": ["AgentExecutorBase.execute"],
    "utils/deepspeed/deepspeed.py": [
        "DeepspeedStrategy.backward",
        "DeepspeedStrategy.optimizer_step",
        "DeepspeedStrategy.get_ds_train_config",
        "DeepspeedStrategy.get_ds_eval_config",
        "DeepspeedStrategy.setup_distributed",
    ],
    "utils/deepspeed/deepspeed_utils.py": ["get_train_ds_config", "get_eval_ds_config"],
}


def hashes(package: Path) -> dict[str, str]:
    """``file:Class.method`` -> hash of its source without comments and layout."""
    found = {}
    for file, names in RELIED_ON.items():
        tree = ast.parse((package / file).read_text(encoding="utf-8"))
        for name in names:
            node: ast.AST = tree
            for part in name.split("."):
                node = next(
                    child
                    for child in ast.iter_child_nodes(node)
                    if getattr(child, "name", None) == part
                )
            found[f"{file}:{name}"] = hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]
    return found


def _package() -> Path | None:
    spec = importlib.util.find_spec("openrlhf")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def test_what_we_build_on_has_not_changed() -> None:
    package = _package()
    if package is None:
        pytest.skip("OpenRLHF is not installed here (make test-openrlhf)")
    known, found = json.loads(TABLE.read_text(encoding="utf-8")), hashes(package)
    changed = [name for name in {**known, **found} if known.get(name) != found.get(name)]
    assert not changed, (
        f"OpenRLHF changed: {', '.join(sorted(changed))}. See this file's first lines."
    )


if __name__ == "__main__":
    place = _package()
    if place is None:
        sys.exit("OpenRLHF is not installed here")
    TABLE.write_text(json.dumps(hashes(place), indent=1, sort_keys=True) + "\n", encoding="utf-8")
