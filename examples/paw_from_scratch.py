"""GRPO with PaW in one file: a transformer trained from scratch on ALFWorld's procedural games.

PaW (arXiv 2606.02388) trains the policy to predict, on its own rollouts, the outcomes of its actions;
equation numbers refer to the paper. `paw_train` has the same with more algorithms and real models.

python examples/paw_from_scratch.py    # a few minutes on two cores
python examples/paw_from_scratch.py --smoke --seed 1 --wm_coef 0    # seconds; here with plain GRPO
"""

import argparse
import math
import random
import re
from dataclasses import dataclass, fields
from statistics import fmean
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paw_gym import EnvPool


@dataclass(frozen=True)
class Settings:
    """Each field is also a command-line option."""

    seed: int = 0  # for weights, games and sampling
    hidden: int = 128  # width of the transformer
    layers: int = 3  # transformer blocks
    heads: int = 4  # query heads; they share one key-value head, so that the cache is small
    context: int = 3000  # maximum number of tokens in an episode, which ends there
    demonstrations: int = 2500  # expert episodes to clone
    noise: float = 0.15  # share of their steps with a random action, so that they show recovery
    cloning_steps: int = 800  # optimizer steps of the warm start
    cloning_batch: int = 6  # episodes per step
    cloning_lr: float = 1e-2  # peak learning rate
    context_weight: float = 0.1  # weight of all other tokens: the language is learned too
    updates: int = 20  # of RL; each is one rollout and `minibatches` optimizer steps
    groups: int = 8  # games per update
    group_size: int = 8  # episodes per game
    minibatches: int = 2  # optimizer steps per update
    lr: float = 1e-3  # peak learning rate of RL
    clip: float = 0.2  # epsilon of the clipped surrogate
    max_return: float = 10.0  # R_max of Eq. 10: success gives 10
    invalid_penalty: float = -0.5  # reward of an action that the environment refuses
    alpha: float = 0.75  # share of the update's transitions that are supervised (Eq. 4)
    rho: float = 0.2  # tokens predicted with more than this probability are left out (Eq. 7)
    wm_coef: float = 0.3  # factor on the world-model term: 1 is Eq. 11, 0 is plain GRPO
    max_steps: int = 30  # limit of a training episode; evaluation keeps the environment's 50
    max_response: int = 11  # tokens of the longest command, including its tags
    eval_games: int = 200  # held-out games, in rooms that do not occur in training


SMOKE = {"demonstrations": 64, "cloning_steps": 4, "updates": 1, "groups": 1, "eval_games": 1}

# --- Tokenizer: a word, with its leading space, is a token
PIECES = re.compile(r"</?action>| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]|\s")
PAD, UNKNOWN, USER, AGENT, END = range(5)
Words = dict[str, int]  # the id of each piece, in order


def encode(text: str, words: Words, learn: bool = False) -> list[int]:
    for piece in PIECES.findall(text) if learn else []:
        words.setdefault(piece, len(words))
    return [words.get(piece, UNKNOWN) for piece in PIECES.findall(text)]


# --- Transformer: rotary positions, one key-value head, squared ReLU, tied embeddings
Cache = tuple[Tensor, Tensor, Tensor]
"""keys and values [layers, 2, episodes, context, D]; of each row: episode [B, 1], position [B, 1]"""


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of x [B, H, T, D] at positions [B, T]."""
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None] * 10_000 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Transformer(nn.Module):
    """Maps ids [B, T] to the logits [B, T, V] of the token after each."""

    def __init__(self, s: Settings, vocabulary: int) -> None:
        super().__init__()
        h, self.heads = s.hidden, s.heads
        shapes = [(h, h), (h, 2 * h // s.heads), (h, h), (h, 4 * h), (4 * h, h)]
        blocks = [[0.02 * torch.randn(shape) for shape in shapes] for _ in range(s.layers)]
        self.blocks = nn.ModuleList(map(nn.ParameterList, blocks))
        self.embedding = nn.Parameter(0.02 * torch.randn(vocabulary, h))

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        stored, rows, start = cache or (None, None, torch.tensor([[0]]))
        positions = (start + torch.arange(ids.shape[1])).expand(ids.shape)
        x = self.embedding[ids]
        for i, (query, key_value, out, up, down) in enumerate(self.blocks):
            h = F.rms_norm(x, x.shape[-1:])
            q = (h @ query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            k, v = (h @ key_value)[:, None].chunk(2, -1)
            q, k, mask = rotate(q, positions), rotate(k, positions), None
            if stored is not None:
                # padding comes after a row's last token: masked now, overwritten by later tokens
                stored[i][:, rows, positions] = torch.stack([k[:, 0], v[:, 0]])
                k, v = stored[i][:, rows, : positions.max() + 1]
                mask = torch.arange(k.shape[2]) <= positions[:, None, :, None]
            k, v = (y.expand(-1, self.heads, -1, -1) for y in (k, v))
            seen = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
            x = x + seen.transpose(1, 2).flatten(2) @ out
            x = x + (F.rms_norm(x, x.shape[-1:]) @ up).relu().square() @ down
        return F.rms_norm(x, x.shape[-1:]) @ self.embedding.T


# --- Token rows: an episode is one dialogue, <user> h_0 <agent> a_0 <user> o_1 <agent> a_1 ...
Row = list[tuple[int, int, float, int]]
"""for each token: id; 1 in an action a_t, 2 in an observation o_{t+1}, else 0; log p if sampled; t"""


class Batch(NamedTuple):
    """E episodes with N transitions in total; [E, T] tensors, whose column t belongs to token t."""

    ids: Tensor
    action: Tensor  # mask of the tokens of a_t
    observation: Tensor  # mask of the tokens of o_{t+1}
    old_logprobs: Tensor
    turn: Tensor  # 0..N-1: the transition that a token belongs to


def collate(rows: list[Row]) -> Batch:
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    ids, kind, old, turn = tokens.unbind(-1)
    first = torch.tensor([0] + [row[-1][3] + 1 for row in rows]).cumsum(0)[:-1, None]
    return Batch(ids.long(), kind == 1, kind == 2, old, turn.long() + first)


def token_logprobs(model: nn.Module, ids: Tensor) -> Tensor:
    """[E, T] log-probability of each token given those before it: one pass serves both losses."""
    logits = model(ids)[:, :-1].transpose(1, 2)
    return F.pad(-F.cross_entropy(logits, ids[:, 1:], reduction="none"), (1, 0))


# --- Rollouts
def make_pool(s: Settings, split: str, groups: int, size: int, max_steps: int = 50) -> EnvPool:
    form = {"template": "compact", "mode": "conversation", "variation": "mixed", "split": split}
    form |= {"max_steps": max_steps, "invalid_penalty": s.invalid_penalty}
    return EnvPool("paw_gym/ALFWorld-v0", groups, size, seed=s.seed, **form)


@torch.no_grad()
def sample(model: Transformer, new: list[Tensor], cache: Cache, s: Settings) -> list[Row]:
    """Samples an action for each running episode; `new`: tokens that the model has not read yet."""
    ends = torch.tensor([[len(ids)] for ids in new])
    logits = model(nn.utils.rnn.pad_sequence(new, batch_first=True), cache)
    logits, sampled = logits.take_along_dim(ends[..., None] - 1, 1), []
    for step in range(s.max_response):
        logprobs = logits[:, 0].log_softmax(-1)
        ids = torch.multinomial(logprobs.exp(), 1)
        sampled.append(torch.cat([ids, logprobs.take_along_dim(ids, 1)], 1))
        logits = model(ids, (*cache[:2], cache[2] + ends + step))
    tokens = torch.stack(sampled, 1)  # [B, max_response, 2]
    lengths = (tokens[:, :-1, 0] != END).cumprod(1).sum(1) + 1
    read = zip(tokens, lengths, strict=True)
    return [[(int(i), 1, float(p), 0) for i, p in action[:length]] for action, length in read]


def run(pool: EnvPool, words: Words, s: Settings, model: Transformer | None = None) -> list[Row]:
    """Plays an episode per environment with the model, or with the expert and some random actions."""
    pool.reset()
    envs, learn = [pool.env_of(slot) for slot in pool.active], model is None
    prompts = [encode(slot.prompt, words, learn) for slot in pool.active]
    rows: list[Row] = [[(i, 0, 0, 0) for i in (USER, *prompt, AGENT)] for prompt in prompts]
    experts = [env.text_env.expert() for env in envs]
    stored = torch.zeros(s.layers, 2, len(rows), s.context if model else 0, s.hidden // s.heads)
    cached = torch.zeros(len(rows), dtype=torch.long)
    while pool.active:
        actions, index = [], torch.tensor([slot.index for slot in pool.active])
        if model:
            new = [torch.tensor([t[0] for t in rows[i][cached[i] :]]) for i in index]
            actions = sample(model, new, (stored, index[:, None], cached[index, None]), s)
        for slot in pool.active if learn else []:
            action, noisy = experts[slot.index](), random.random() < s.noise
            action = random.choice(slot.info["admissible_actions"]) if noisy else action
            response = envs[slot.index].response_for(action)
            actions.append([(i, int(not noisy), 0, 0) for i in encode(response, words, learn)])
        slots, names = list(pool.active), list(words)
        pool.step(["".join(names[token[0]] for token in action) for action in actions])
        for slot, action in zip(slots, actions, strict=True):
            row, last = rows[slot.index], slot.episode.transitions[-1]
            cached[slot.index] = len(row) + len(action)
            seen = encode(last.next_observation, words, learn)
            turn = [*action, (USER, 0, 0, 0), *((i, 2, 0, 0) for i in seen), (AGENT, 0, 0, 0)]
            row += [(*token[:3], last.step) for token in turn]
        pool.active = [x for x in pool.active if len(rows[x.index]) + s.max_response <= s.context]
    return rows


# --- Warm start
def optimize(optimizers: list[torch.optim.Optimizer], loss: Tensor, lr: float, done: float) -> None:
    """One step; the learning rate rises over the first tenth of the run and falls to 0 at its end."""
    loss.backward()
    for optimizer in optimizers:
        (group,) = optimizer.param_groups
        nn.utils.clip_grad_norm_(group["params"], 1.0)
        group["lr"] = lr * min(10 * done, 1.0) * (1 - done)
        optimizer.step()
        optimizer.zero_grad()


def clone(model: Transformer, rows: list[Row], s: Settings) -> None:
    """Next-token prediction on the expert's episodes; a batch has episodes of similar length."""
    rows = sorted(rows, key=len)
    matrices = torch.optim.Muon(model.blocks.parameters(), weight_decay=0.01)
    optimizers = [matrices, torch.optim.AdamW([model.embedding], betas=(0.9, 0.95), weight_decay=0)]
    for step in range(1, s.cloning_steps + 1):
        first = random.randrange(0, len(rows), s.cloning_batch)
        batch = collate(rows[first : first + s.cloning_batch])
        weights = torch.where(batch.action, 1.0, s.context_weight) * (batch.ids != PAD)
        loss = -(token_logprobs(model, batch.ids) * weights).sum() / weights.sum()
        optimize(optimizers, loss, s.cloning_lr, step / (s.cloning_steps + 1))


# --- The update: GRPO with PaW
def mean_by_turn(values: Tensor, mask: Tensor, turn: Tensor, count: int) -> Tensor:
    """[N] for each transition, the mean of values [E, T] over its tokens in the mask."""
    sums = values.new_zeros(count).index_add(0, turn[mask], values[mask])
    return sums / torch.bincount(turn[mask], minlength=count).clamp(min=1)


def plan(batch: Batch, rewards: list[float], s: Settings) -> tuple[Tensor, Tensor]:
    """Advantages A [E] of the episodes and world-model weights w [N] of the transitions."""
    returns = torch.tensor(rewards).view(-1, s.group_size)
    mean, std = returns.mean(1, keepdim=True), returns.std(1, keepdim=True)
    advantages = (returns - mean) / (std + 1e-6)  # GRPO (Shao et al. 2024), section 4.1.2
    lengths = batch.turn.amax(1).diff(prepend=torch.tensor([-1]))
    group = (torch.arange(len(lengths)) // s.group_size).repeat_interleave(lengths)  # [N]
    log_q, mask = batch.old_logprobs, batch.action
    entropy = mean_by_turn(-log_q.exp() * log_q, mask, batch.turn, len(group))  # H, section 3.1
    order = entropy.argsort(descending=True, stable=True)
    selected = order[: math.ceil(s.alpha * len(order))]  # Eq. 4
    lambdas = 1 - mean[:, 0] / s.max_return  # Eq. 10
    sizes = torch.bincount(group[selected], minlength=len(lambdas))  # |S_g|
    weights = torch.zeros(len(group))
    weights[selected] = (lambdas / (len(lambdas) * sizes))[group[selected]]  # Eq. 11
    return advantages.flatten(), weights


def losses(
    logprobs: Tensor, batch: Batch, advantages: Tensor, weights: Tensor, s: Settings
) -> tuple[Tensor, Tensor]:
    """The two terms of Eq. 11: the policy's, and the world model's without `wm_coef`."""
    ratio, advantage = (logprobs - batch.old_logprobs).exp(), advantages[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - s.clip, 1 + s.clip) * advantage)
    policy = -((surrogate * batch.action).sum(1) / batch.action.sum(1)).mean()  # GRPO's Eq. 3
    p = logprobs.exp()
    error = (p <= s.rho) * (1 - p)  # m_i (1 - p_i), Eq. 7
    cmae = mean_by_turn(error, batch.observation, batch.turn, len(weights))  # Eq. 8
    return policy, (weights * cmae).sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_const", const=SMOKE, default={})
    for f in fields(Settings):
        parser.add_argument(f"--{f.name}", type=type(f.default), default=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    s = Settings(**(given.pop("smoke") | given))
    random.seed(s.seed)
    torch.manual_seed(s.seed)

    words = {name: i for i, name in enumerate(["<pad>", "<unk>", "<user>", "<agent>", "</action>"])}
    shown, pool = [], make_pool(s, "train", 64, 1)
    while len(shown) < s.demonstrations:
        shown += [r for r, e in zip(run(pool, words, s), pool.episodes, strict=True) if e.success]
    model = Transformer(s, len(words))
    clone(model, shown, s)

    def evaluate() -> float:
        test = make_pool(s, "valid_unseen", s.eval_games, 1)
        run(test, words, s, model)
        return fmean(episode.success for episode in test.episodes)

    print(f"cloned {len(shown)} episodes; held-out games solved: {evaluate():.1%}", flush=True)
    pool = make_pool(s, "train", s.groups, s.group_size, s.max_steps)
    adam = torch.optim.AdamW(model.parameters(), weight_decay=0)
    for number in range(1, s.updates + 1):
        batch = collate(run(pool, words, s, model))
        advantages, weights = plan(batch, [e.total_reward for e in pool.episodes], s)
        for part in torch.randperm(len(batch.ids)).chunk(s.minibatches):
            some = Batch(*(x[part] for x in batch))
            policy, wm = losses(token_logprobs(model, some.ids), some, advantages[part], weights, s)
            wm = wm * len(batch.ids) / len(part)  # so that the mini-batches average to Eq. 11
            optimize([adam], policy + s.wm_coef * wm, s.lr, number / (s.updates + 1))
        solved = fmean(e.success for e in pool.episodes)
        print(f"update {number}: {solved:.1%} of its episodes succeed", flush=True)
    print(f"held-out games solved after RL: {evaluate():.1%}")


if __name__ == "__main__":
    main()
