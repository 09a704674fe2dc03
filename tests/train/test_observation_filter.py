"""The filter of observations: what is left out of the world-model loss, on both engines and in TRL."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `train`")

from paw_train.algorithms.experience import Prepared, prepare  # noqa: E402
from paw_train.algorithms.pool import collect  # noqa: E402
from paw_train.algorithms.update import Updater  # noqa: E402
from paw_train.conformance.engines.layout import trajectories  # noqa: E402
from paw_train.conformance.recording import OBJECTIVES, Recording, load  # noqa: E402
from paw_train.losses.lm_head_logprobs import ForwardScorer  # noqa: E402
from paw_train.losses.objective import ObjectiveSettings  # noqa: E402
from paw_train.policies.local.policy import LocalPolicy  # noqa: E402
from paw_train.rollouts.observation_filter import filtered, leave_out  # noqa: E402
from paw_train.rollouts.tokens import CONTEXT, OBSERVATION  # noqa: E402
from paw_train.settings import (  # noqa: E402
    AlgorithmSettings,
    OptimizerSettings,
    WorldModelSettings,
)
from paw_train.training.openrlhf.learning import micro_batch_loss  # noqa: E402
from paw_train.training.openrlhf.sharding import shard_update  # noqa: E402

NOISE = (r"^You [a-z ]+\.", "H+")
PLAIN = ObjectiveSettings(kl_coef=0.0)
CASES = {
    "echoes": {"filter_echoes": True},
    "noise rules": {"filter_patterns": NOISE},
    "both, and no warnings": {
        "filter_echoes": True,
        "filter_patterns": NOISE,
        "filter": "warnings",
    },
}


def settings_of(name: str) -> WorldModelSettings:
    return WorldModelSettings(loss="ce", alpha=1.0, **CASES[name])  # type: ignore[arg-type]


def episodes() -> list[Any]:
    """The recorded episodes with the actions that the environment was given."""
    found = trajectories(load(), OBJECTIVES["world_model"])
    for trajectory in found:
        steps = trajectory.episode.transitions
        steps[:] = [dataclasses.replace(t, action=action_in(t.response)) for t in steps]
    return found


def action_in(response: str) -> str:
    match = re.search("<action>(.*)</action>", response)
    return match[1] if match else ""


def expected_loss(recording: Recording, settings: WorldModelSettings) -> float:
    """Cross-entropy with alpha 1, written out: offsets of the tokenizer, sums in float64."""
    model = recording.model("policy").double()
    groups: dict[int, list[float]] = {}
    returns: dict[int, list[float]] = {}
    for episode in recording.episodes:
        returns.setdefault(episode.group, []).append(episode.total_reward)
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([episode.ids])).logits[0].log_softmax(-1)
        for turn in episode.turns:
            if settings.filter == "warnings" and turn.malformed:
                continue
            kept = tokens_left(recording, turn, settings)
            losses = [-scores[t - 1, episode.ids[t]].item() for t in kept]
            if losses:
                groups.setdefault(episode.group, []).append(sum(losses) / len(losses))
    total = 0.0
    for group, members in groups.items():
        lam = 1 - sum(returns[group]) / len(returns[group]) / 10
        total += lam * sum(members) / len(members) / len(returns)
    return total


def tokens_left(recording: Recording, turn: Any, settings: WorldModelSettings) -> list[int]:
    """Places in the episode of the observation's tokens that no rule covers."""
    text = turn.message[slice(*turn.observation)]
    rules = list(settings.filter_patterns)
    if settings.filter_echoes and action_in(turn.response):
        rules.append(rf"\b{re.escape(action_in(turn.response))}\b")
    gone = {c for rule in rules for m in re.finditer(rule, text) for c in range(*m.span())}
    offsets = recording.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )["offset_mapping"]
    start = turn.observation_tokens[0]
    return [start + k for k, (a, b) in enumerate(offsets) if not gone & set(range(a, b))]


def experience_with(settings: WorldModelSettings) -> Prepared:
    found = leave_out(episodes(), load().tokenizer, settings)
    return prepare(
        collect(found), AlgorithmSettings(normalize=True), PLAIN, settings, max_return=10.0
    )


def local_loss(settings: WorldModelSettings) -> float:
    policy = LocalPolicy(load().model("policy"), load().tokenizer)
    optimizer = OptimizerSettings(lr=0.0, micro_batch_tokens=1500)
    updater = Updater(policy, None, optimizer, PLAIN, settings, 1.0, updates=1)
    return updater.step(experience_with(settings).rows, update=0, seed=0)["wm_term"]


def cluster_loss(settings: WorldModelSettings) -> float:
    model = load().model("policy")
    scorer = ForwardScorer(model)

    def score(ids: Any, attention: Any, tokens: Any, *others: Any) -> Any:
        def forward() -> Any:
            return model(input_ids=ids, attention_mask=attention).logits

        return scorer(forward, tokens - 1, ids.flatten()[tokens], *others)

    optimizer = OptimizerSettings(micro_batch_tokens=1500)
    shards = shard_update(experience_with(settings).rows, optimizer, ranks=2, seed=0, pad_id=0)
    losses = [
        micro_batch_loss(part, score, PLAIN, settings, 1.0, torch.device("cpu")).wm_loss
        for part in itertools.chain.from_iterable(shards)
    ]
    return float(sum(losses))


@pytest.mark.parametrize("name", CASES)
def test_both_engines_leave_out_what_the_rules_cover(name: str) -> None:
    settings = settings_of(name)
    expected = expected_loss(load(), settings)
    unfiltered = expected_loss(load(), WorldModelSettings(loss="ce", alpha=1.0))
    assert abs(expected - unfiltered) > 1e-3
    assert local_loss(settings) == pytest.approx(expected, rel=1e-4)
    assert cluster_loss(settings) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_trl_leaves_out_the_same(name: str) -> None:
    pytest.importorskip("trl", reason="the extra `sft`")
    from paw_train.integrations.trl import PaWTrainer, columns, weigh_tokens, world_model_term

    settings = settings_of(name)
    given = [columns(trajectory) for trajectory in episodes()]
    ids = [torch.tensor(column["completion_ids"]) for column in given]
    completions = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    turns = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(column["turns"]) for column in given], batch_first=True
    )

    class Part:
        """What ``_leave_out`` reads of a trainer."""

        _actions = [column["actions"] for column in given]
        processing_class, world_model = load().tokenizer, settings

    PaWTrainer._leave_out(Part, turns, completions)  # type: ignore[arg-type]
    model, logps = load().model("policy"), torch.zeros(completions.shape)
    for b, column in enumerate(given):
        whole = torch.tensor([column["prompt_ids"] + column["completion_ids"]])
        with torch.no_grad():
            scores = model(input_ids=whole).logits[0, :-1].log_softmax(-1)
        known = scores.gather(-1, whole[0, 1:, None]).flatten()
        logps[b, : len(ids[b])] = known[len(column["prompt_ids"]) - 1 :]
    weights, _ = weigh_tokens(
        turns,
        logps,
        torch.tensor([column["reward"] for column in given]),
        torch.arange(12) // 4,
        settings,
        10.0,
        [column["malformed"] for column in given],
    )
    term = world_model_term(logps, weights, settings)
    assert float(term) == pytest.approx(expected_loss(load(), settings), rel=1e-4)


def test_an_observation_without_a_token_left_is_not_supervised() -> None:
    settings = WorldModelSettings(loss="ce", alpha=1.0, filter_patterns=(r"(?s).*go down.*",))
    experience = experience_with(settings)
    found = [
        t.next_observation for trajectory in episodes() for t in trajectory.episode.transitions
    ]
    gone = torch.tensor(["go down" in text for text in found])
    assert gone.any() and not gone.all()
    assert torch.equal(experience.plan.weights == 0, gone)
    left = {turn for row in experience.rows for turn in row.places(OBSERVATION)}
    assert left == set((~gone).nonzero().flatten().tolist())


def test_what_is_left_out_keeps_its_turn_and_the_callers_rows_stay() -> None:
    given = episodes()
    before = [list(row.role) for t in given for row in t.rows]
    found = leave_out(given, load().tokenizer, WorldModelSettings(filter_patterns=NOISE))
    assert [row.role for t in given for row in t.rows] == before
    (row,), (own,) = found[0].rows, given[0].rows
    assert row.turn == own.turn and row.role != own.role
    for role, was in zip(row.role, own.role, strict=True):
        assert role == was or (role, was) == (CONTEXT, OBSERVATION)


def test_echoes_are_whole_words() -> None:
    tokenizer, settings = load().tokenizer, WorldModelSettings(filter_echoes=True)
    ids = tokenizer("You go down. FF down", add_special_tokens=False)["input_ids"]
    found = filtered(ids, "down", tokenizer, settings)
    assert [tokenizer.decode(ids[slice(*span)]) for span in found] == [" down", " down"]
    assert filtered(ids, "dow", tokenizer, settings) == []
    assert filtered(ids, " ", tokenizer, settings) == []


def test_a_character_of_several_tokens_is_left_out_whole() -> None:
    from paw_train.policies.local.scratch import piece_tokenizer

    tokenizer = piece_tokenizer(["It is warm."], 512)
    ids = tokenizer("It is 20 \u00b0C warm.", add_special_tokens=False)["input_ids"]
    settings = WorldModelSettings(filter_patterns=(r"\d+ \u00b0C",))
    (span,) = filtered(ids, "", tokenizer, settings)
    assert tokenizer.decode(ids[slice(*span)]).strip() == "20 \u00b0C"


def test_a_rule_that_is_no_regular_expression_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression"):
        WorldModelSettings.read({"filter_patterns": ["("]}, "world_model")
