"""A rank of the learning step, over gloo: `python one_rank.py RANK RANKS FOLDER`.

Reads cases from FOLDER/cases.pt, writes what came out to FOLDER/rank<RANK>.pt. It stands in for
DeepSpeed: gradients are averaged over the ranks when the optimiser steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paw_train.losses.lm_head_logprobs import ForwardScorer, TokenScores
from paw_train.policies.local.scratch import scratch_model
from paw_train.settings.model import ScratchModelSettings
from paw_train.training.openrlhf.learning import learn, micro_batch_loss, micro_batch_value_loss

SMALL = ScratchModelSettings(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=32)


def scores(model: Any) -> Any:
    """Scores as our actor on DeepSpeed gives them."""

    scorer = ForwardScorer(model)

    def score(ids: Tensor, attention: Tensor, tokens: Tensor, *others: Any) -> TokenScores:
        return scorer(
            lambda: model(input_ids=ids, attention_mask=attention).logits,
            tokens - 1,
            ids.flatten()[tokens],
            *others,
        )

    return score


class SmallCritic(torch.nn.Module):
    """A decoder with a scalar head, that gives values as OpenRLHF's critic does."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = torch.nn.Linear(SMALL.hidden, 1, bias=False)

    def forward(self, ids: Tensor, attention: Tensor) -> Tensor:
        hidden = self.decoder(input_ids=ids, attention_mask=attention).last_hidden_state
        values: Tensor = self.head(hidden).squeeze(-1)[:, :-1]
        return values


def run(case: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Metrics of each optimiser step, and the gradient of the last."""
    model: Any = scratch_model(SMALL, case["vocabulary"], 0)
    model.load_state_dict(case["model"])
    model.eval()
    cpu = torch.device("cpu")
    if "head" in case:
        model = SmallCritic(model.get_decoder())
        model.head.load_state_dict({"weight": case["head"]})

    def loss_of(part: Any) -> Any:
        if "head" in case:
            return micro_batch_value_loss(part, model, case["level"], cpu)
        return micro_batch_loss(
            part,
            scores(model),
            case["objective"],
            case["world_model"],
            case["temperature"],
            cpu,
        )

    parts, gradients = case["micro_batches"][rank], []

    def step() -> float:
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if ranks > 1:
                dist.all_reduce(p.grad)
            p.grad /= ranks
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        model.zero_grad()
        return float(gradients[-1].norm())

    def gathered(own: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        if ranks == 1:
            return own
        parts: list[Any] = [None] * ranks
        dist.all_gather_object(parts, own)
        return [metrics for part in parts for metrics in part]

    steps = learn(parts, loss_of, lambda loss: loss.backward(), step, gathered, ranks)
    return {"steps": steps, "gradients": gradients, "micro_batches": len(parts)}


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    cases = torch.load(folder / "cases.pt", weights_only=False)
    torch.save([run(case, rank, ranks) for case in cases], folder / f"rank{rank}.pt")
    dist.barrier()  # a rank that leaves while the other still reduces takes it down
    dist.destroy_process_group()
    # gloo's threads may still be ending: Python's own shutdown would abort on them now and then
    os._exit(0)


if __name__ == "__main__":
    main()
