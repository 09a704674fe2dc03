"""TRL's GRPO trainer on ALFWorld, with PaW's world-model term: pip install ".[train,sft]"

python examples/train_with_trl.py HuggingFaceTB/SmolLM2-135M-Instruct     # 20 updates on procedural games
python examples/train_with_trl.py HuggingFaceTB/SmolLM2-135M-Instruct off # the same without the term
python examples/train_with_trl.py --smoke                                 # untrained weights, one update
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch

from paw_gym.adapters.trl import task_rows
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings import RolloutSettings
from paw_train.settings.scratch import ScratchModelSettings
from paw_train.settings.world_model import WorldModelSettings

ENV, SMOKE = "paw_gym/ALFWorld-v0", "--smoke" in sys.argv


def model_and_tokenizer() -> tuple[Any, Any]:
    """The model of the command line, or a tiny one with untrained weights."""
    if not SMOKE:
        policy = LocalPolicy.load(sys.argv[1])
        return policy.model, policy.tokenizer
    tokenizer = word_tokenizer(["You are in the middle of a room."])
    size = ScratchModelSettings(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
    return scratch_model(size, len(tokenizer), seed=0), tokenizer


def main() -> None:
    """Trains, and prints what TRL logs."""
    from datasets import Dataset
    from trl import GRPOConfig

    from paw_train.integrations.trl import PaWTrainer, TextRollouts, episode_reward

    model, tokenizer = model_and_tokenizer()
    limits = RolloutSettings(max_response_tokens=4 if SMOKE else 64)
    PaWTrainer(
        model,
        reward_funcs=episode_reward,
        rollout_func=TextRollouts(ENV, limits, max_steps=2 if SMOKE else 20),
        train_dataset=Dataset.from_list(task_rows(ENV, "text", tasks=8)),
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=1 if SMOKE else 20,
            per_device_train_batch_size=8,
            num_generations=4,
            learning_rate=1e-5,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            save_strategy="no",
            logging_steps=1,
            report_to=[],
        ),
        world_model=WorldModelSettings.preset("off" if "off" in sys.argv else "paw"),
        max_return=10.0,  # what success is worth
    ).train()


if __name__ == "__main__":
    try:
        import datasets
        import trl
    except ImportError as error:
        print(f'Not run, {error}: pip install ".[train,sft]"')
    else:
        main()
