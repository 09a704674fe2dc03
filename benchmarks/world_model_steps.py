"""The effect of the optimiser's step size on clipped MAE: the world-model term alone, under Adam.

Every learning rate starts from the same weights and takes its steps on the same recorded dialogues, all of
them in one batch, with Eq. 7-8 on every transition (no selection, equal weights). Printed are the median
probability of the first word of the next observation, apart for actions that were refused ("Nothing
happens.") and carried out, and the mean NLL of all observation tokens.

    python benchmarks/world_model_steps.py RUN/checkpoints/warm/model \\
        --episodes RUN/rollouts/000000.jsonl

Made for word tokens (``model.scratch.tokenizer=words``), in conversation mode.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

import torch
from observation_tokens import kinds_of

from paw_gym.transition import Episode, read_jsonl
from paw_gym.wrappers import make_agent_env
from paw_train.evaluation.world_model import predictions
from paw_train.losses.world_model import WorldModelSettings, world_model_loss
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.tokens import TokenBatch, TokenRow, collate
from paw_train.settings.foreign import recorded_id

SHOWN = (0, 1, 2, 4, 8, 12, 24, 48)


def dialogue(episode: Episode, policy: LocalPolicy) -> TokenRow:
    """A whole episode as one row, with the spans of all its transitions."""
    probe = make_agent_env(
        recorded_id(episode.env_id, "The record"), template="compact", mode="conversation"
    )
    found = predictions([episode], policy.chat, probe.text_env.prompt_observation, probe.template)
    probe.close()
    whole = found[-1].row
    for one in found:
        # tokens of words do not depend on what follows: each row is the beginning of the last
        if whole.ids[: len(one.row.ids)] != one.row.ids:
            raise ValueError(f"{episode.episode_id}: its tokens depend on where a text ends.")
    return TokenRow(whole.ids, [step for one in found for step in one.row.steps])


def measure(logp: torch.Tensor, batch: TokenBatch, refused: torch.Tensor) -> str:
    """Median probability of the first word by kind, and the NLL of all tokens."""
    first = batch.observation_mask & (batch.observation_mask.cumsum(-1) == 1)
    p = logp.detach()[first].exp()
    nll = -logp.detach()[batch.observation_mask].mean()
    medians = [statistics.median(p[kind].tolist()) for kind in (refused, ~refused)]
    return f"{medians[0]:8.3f} {medians[1]:12.3f} {nll:8.3f}"


def learn(start: Path, episodes: list[Episode], lr: float, settings: WorldModelSettings) -> None:
    """Takes the steps and prints a line for each of ``SHOWN``."""
    policy = LocalPolicy.load(start)
    policy.model.eval()
    batch = collate([dialogue(e, policy) for e in episodes], policy.pad_id)
    words = [
        policy.tokenizer.decode(batch.input_ids[batch.row[s][mask], batch.column[s][mask]][:1])
        for s, mask in enumerate(batch.observation_mask)
    ]
    refused = torch.tensor([kinds_of([word.strip()])[0] == "refused" for word in words])
    adam = torch.optim.Adam(policy.model.parameters(), lr=lr)
    print(
        f"\n{settings.loss}, lr {lr:g}: {int(refused.sum())} refused, {int((~refused).sum())} not"
    )
    print("steps  p refused  p carried out  NLL")
    for step in range(max(SHOWN) + 1):
        logp = policy.logprobs(batch)
        if step in SHOWN:
            print(f"{step:5d} {measure(logp, batch, refused)}", flush=True)
        adam.zero_grad()
        world_model_loss(logp, batch.observation_mask, settings).mean().backward()
        adam.step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("start", type=Path, help="folder with the weights to start from")
    parser.add_argument("--episodes", type=Path, required=True, help="recorded episodes (JSONL)")
    parser.add_argument("--limit", type=int, default=8, help="episodes to take")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-4, 1e-4])
    parser.add_argument("--loss", default="cmae", help="cmae, mae, ce or gce")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    episodes = list(read_jsonl(given.episodes))[: given.limit]
    for lr in given.rates:
        learn(given.start, episodes, lr, WorldModelSettings(loss=given.loss))


if __name__ == "__main__":
    main()
