"""TRL's GRPO trainer on ALFWorld, with PaW's world-model term: pip install ".[train,sft]"

python examples/train_with_trl.py HuggingFaceTB/SmolLM2-135M-Instruct --out runs/trl
python examples/train_with_trl.py HuggingFaceTB/SmolLM2-135M-Instruct --out runs/trl-off --world-model off
python examples/train_with_trl.py --smoke   # untrained weights, one update

A model that never succeeds learns little. A better start is runs/NAME/checkpoints/warm/model of `paw train`.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch

from paw_gym.adapters.trl import task_rows
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings import RolloutSettings
from paw_train.settings.model import ScratchModelSettings
from paw_train.settings.world_model import WorldModelSettings

ENV = "paw_gym/ALFWorld-v0"


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a folder, or a name on the hub")
    parser.add_argument("--out", help="folder for the trained model")
    parser.add_argument("--world-model", choices=["paw", "echo", "off"], default="paw")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--games", type=int, default=4, help="games per update")
    parser.add_argument("--group-size", type=int, default=4, help="episodes per game")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="untrained weights, one short update")
    args = parser.parse_args()
    if not args.smoke and args.model is None:
        parser.error("give a model, or --smoke")
    return args


def model_and_tokenizer(args: argparse.Namespace) -> tuple[Any, Any]:
    """The model named on the command line, or a tiny one with untrained weights."""
    if not args.smoke:
        policy = LocalPolicy.load(args.model)
        return policy.model, policy.tokenizer
    tokenizer = word_tokenizer(["You are in the middle of a room."])
    size = ScratchModelSettings(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
    return scratch_model(size, len(tokenizer), seed=0), tokenizer


def main(args: argparse.Namespace) -> None:
    """Trains, prints what TRL logs, and writes the model."""
    from datasets import Dataset
    from trl import GRPOConfig

    from paw_train.integrations.trl import PaWTrainer, TextRollouts, episode_reward

    model, tokenizer = model_and_tokenizer(args)
    limits = RolloutSettings(max_response_tokens=4 if args.smoke else 24)
    world = {"template": "compact", "max_steps": 2 if args.smoke else 20, "variation": "mixed"}
    trainer = PaWTrainer(
        model,
        reward_funcs=episode_reward,
        rollout_func=TextRollouts(ENV, limits, args.seed, **world),
        train_dataset=Dataset.from_list(task_rows(ENV, "text", tasks=1000, **world)),
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=args.out or tempfile.mkdtemp(),
            max_steps=1 if args.smoke else args.updates,
            per_device_train_batch_size=args.group_size,  # episodes scored at a time
            gradient_accumulation_steps=args.games,
            num_generations=args.group_size,
            learning_rate=args.lr,
            seed=args.seed,
            use_cpu=not torch.cuda.is_available(),
            bf16=torch.cuda.is_available(),
            save_strategy="no",
            logging_steps=1,
            report_to=[],
        ),
        world_model=WorldModelSettings.preset(args.world_model),
        max_return=10.0,  # the reward for success
    )
    trainer.train()
    if args.out:
        trainer.save_model(args.out)


if __name__ == "__main__":
    given = arguments()
    try:
        import datasets
        import trl
    except ImportError as error:
        print(f'Not run, {error}: pip install ".[train,sft]"')
    else:
        main(given)
