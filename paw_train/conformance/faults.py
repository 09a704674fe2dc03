"""Thirty faults of agent trainers, each planted at a border between the methods of ``protocol.Trainer``.

A trainer that can plant a fault in its own code does so instead (``Trainer.plant``). Two faults have no such
border and are planted by trainers alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from paw_train.conformance.protocol import Outcome, Row
from paw_train.conformance.recording import Objective, Recording, Turn

Pass = Callable[[Sequence[Row]], Outcome]
"""a trainer's losses and gradients of some rows"""


@dataclass(frozen=True)
class Borders:
    """Changes of data on their way between a trainer's methods; by default none."""

    recording: Callable[[Recording, Objective], Recording] = lambda recording, objective: recording
    """what the trainer is given"""
    objective: Callable[[Objective], Objective] = lambda objective: objective
    """what the trainer is asked to minimise"""
    rows: Callable[[Recording, list[Row]], list[Row]] = lambda recording, rows: rows
    advantages: Callable[[Recording, Tensor], Tensor] = lambda recording, values: values
    weights: Callable[[Recording, Objective, Tensor], Tensor] = lambda recording, objective, w: w
    compute: Callable[[Pass, list[Row]], Outcome] = lambda run, rows: run(rows)
    """the pass over the batch: given the trainer's own and the rows"""


@dataclass(frozen=True)
class Fault:
    """A change of what a trainer would compute."""

    name: str
    what: str
    """a sentence for the table"""
    objective: str
    """the objective of ``recording.OBJECTIVES`` under which it is looked for"""
    borders: Borders | None
    """``None``: only a trainer's own code can have it"""


# --- rows -------------------------------------------------------------------------------------------


def _map_rows(change: Callable[[Row], Row]) -> Borders:
    return Borders(rows=lambda recording, rows: [change(row) for row in rows])


def _marked(row: Row, role: str, where: Sequence[int], transitions: Sequence[int]) -> Row:
    """The row with the given places marked with a role, and no others."""
    roles: list[Any] = ["prompt" if r == role else r for r in row.roles]
    numbers = [-1 if r == role else n for r, n in zip(row.roles, row.transitions, strict=True)]
    for place, number in zip(where, transitions, strict=True):
        roles[place], numbers[place] = role, number
    return replace(row, roles=roles, transitions=numbers)


def _shifted(role: str, by: int) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        places = [t for t, r in enumerate(row.roles) if r == role and 0 < t + by < len(row.ids)]
        return _marked(row, role, [t + by for t in places], [row.transitions[t] for t in places])

    return change


def _observations_as_actions(row: Row) -> Row:
    roles: list[Any] = ["action" if r == "env_output" else r for r in row.roles]
    return replace(row, roles=roles)


def _without_end_tokens(row: Row) -> Row:
    kept = [
        t
        for t, role in enumerate(row.roles)
        if role == "action" and _same(row, t, t + 1)  # the last of a response is left out
    ]
    return _marked(row, "action", kept, [row.transitions[t] for t in kept])


def _same(row: Row, t: int, u: int) -> bool:
    """True if two places belong to the same action or observation."""
    both = range(len(row.ids))
    return u in both and row.roles[t] == row.roles[u] and row.transitions[t] == row.transitions[u]


def _with_retokenised_turns(row: Row, recording: Recording) -> Row:
    result = Row([], [], [], [])
    t = 0
    while t < len(row.ids):
        end = t + 1
        if row.roles[t] == "action":
            while _same(row, t, end):
                end += 1
            turn = recording.turns[row.transitions[t]]
            ids = _encoded(turn, recording.tokenizer)
        else:
            ids = row.ids[t:end]
        count = len(ids)
        result.ids.extend(ids)
        result.roles.extend([row.roles[t]] * count)
        result.transitions.extend([row.transitions[t]] * count)
        result.logprobs.extend([*row.logprobs[t:end], *[0.0] * count][:count])
        t = end
    return result


def _encoded(turn: Turn, tokenizer: Any) -> list[int]:
    """The tokens of a response's text, with the end token if there was one."""
    ids = list(tokenizer(turn.response, add_special_tokens=False)["input_ids"])
    end = turn.response_ids[-1:]
    return ids + (end if end == [tokenizer.eos_token_id] else [])


def _without_last_observation(row: Row) -> Row:
    last = max(row.transitions)
    end = max(t for t, r in enumerate(row.roles) if r == "action" and row.transitions[t] == last)
    return Row(*(values[: end + 1] for values in _columns(row)))


def _columns(row: Row) -> tuple[list[Any], ...]:
    return row.ids, row.roles, row.transitions, row.logprobs


def _a_row_each_turn(recording: Recording, rows: list[Row]) -> list[Row]:
    found = []
    for row in rows:
        for number in sorted(set(row.transitions) - {-1}):
            end = 1 + max(t for t, n in enumerate(row.transitions) if n == number)
            found.append(Row(*(values[:end] for values in _columns(row))))
    return found


def _two_in_a_row(recording: Recording, rows: list[Row]) -> list[Row]:
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [Row(*(a + b for a, b in zip(_columns(x), _columns(y), strict=True))) for x, y in pairs]


def _template_as_observation(row: Row) -> Row:
    """Everything between two responses, and the first prompt, as part of an observation."""
    numbers = [n for n in row.transitions if n >= 0]
    current, places, found = numbers[0], [], []
    for t in range(1, len(row.ids)):
        if row.roles[t] == "action":
            current = row.transitions[t]
        elif current != numbers[-1] or row.roles[t] == "env_output":
            places.append(t)
            found.append(current)
    after = [(t, n) for t, n in zip(places, found, strict=True) if t >= row.roles.index("action")]
    return _marked(row, "env_output", [t for t, _ in after], [n for _, n in after])


# --- what the trainer is given ----------------------------------------------------------------------


def _turns(recording: Recording, change: Callable[[Turn], Turn]) -> Recording:
    episodes = [replace(e, turns=[change(turn) for turn in e.turns]) for e in recording.episodes]
    return recording.replace(episodes=episodes)


def _truncated_as_success(recording: Recording, objective: Objective) -> Recording:
    return _turns(
        recording,
        lambda t: replace(t, reward=t.reward + 10.0) if t.truncated and not t.success else t,
    )


def _other_weights(**of: str) -> Borders:
    def change(recording: Recording, objective: Objective) -> Recording:
        swapped = {name: recording.weights[source] for name, source in of.items()}
        return recording.replace(weights={**recording.weights, **swapped})

    return Borders(recording=change)


@torch.no_grad()
def _stale_logprobs(recording: Recording, objective: Objective) -> Recording:
    """Sampled responses with the log-probabilities of the reference."""
    model = recording.model("reference")
    scores = {}
    for episode in recording.episodes:
        ids = torch.tensor([episode.ids])
        logits = model(input_ids=ids).logits[0, :-1] / objective.temperature
        known = logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).flatten().tolist()
        for turn in episode.turns:
            start, end = turn.action_tokens
            scores[turn.number] = known[start - 1 : end - 1]
    changed = _turns(
        recording,
        lambda t: replace(t, logprobs={**t.logprobs, objective.name: scores[t.number]}),
    )
    return changed.replace(weights={**changed.weights, "sampler": changed.weights["reference"]})


def _hooked(hook: Callable[[Any, tuple[Any, ...], dict[str, Any], int], Any]) -> Borders:
    """Models whose decoder is called with other arguments."""

    def change(recording: Recording, objective: Objective) -> Recording:
        first = recording.tokenizer.convert_tokens_to_ids("<user>")

        def attach(model: Any) -> None:
            model.get_decoder().register_forward_pre_hook(
                lambda module, args, kwargs: hook(module, args, kwargs, first), with_kwargs=True
            )

        return recording.replace(changes=[*recording.changes, attach])

    return Borders(recording=change)


def _restart_positions(module: Any, args: tuple[Any, ...], kwargs: Any, first: int) -> Any:
    ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
    place = torch.arange(ids.shape[1]).expand(ids.shape)
    start = torch.where(ids == first, place, 0).cummax(-1).values
    return args, {**kwargs, "position_ids": place - start}


# --- advantages and weights -------------------------------------------------------------------------


def _each(recording: Recording, value: Callable[[Any], float]) -> Tensor:
    """[N] a value of each transition's episode."""
    return torch.tensor(
        [value(e) for e in recording.episodes for _ in e.turns], dtype=torch.float64
    )


def _population_deviation(recording: Recording, advantages: Tensor) -> Tensor:
    size = recording.group_size
    return advantages * math.sqrt(size / (size - 1))


def _across_groups(recording: Recording, advantages: Tensor) -> Tensor:
    returns = [e.total_reward for e in recording.episodes]
    mean, deviation = statistics.mean(returns), statistics.stdev(returns)
    return _each(recording, lambda e: (e.total_reward - mean) / deviation)


def _per_turn(recording: Recording, advantages: Tensor) -> Tensor:
    counted: dict[int, list[float]] = {}
    for e in recording.episodes:
        counted.setdefault(e.group, []).extend([e.total_reward] * len(e.turns))
    return _each(
        recording,
        lambda e: (
            (e.total_reward - statistics.mean(counted[e.group]))
            / (statistics.stdev(counted[e.group]) + 1e-6)
        ),
    )


def _last_turn_only(recording: Recording, advantages: Tensor) -> Tensor:
    last = {e.turns[-1].number for e in recording.episodes}
    kept = torch.tensor([float(turn.number in last) for turn in recording.turns])
    return advantages * kept


def _lambdas(recording: Recording, objective: Objective) -> list[float]:
    assert objective.world_model is not None
    groups: dict[int, list[float]] = {}
    for e in recording.episodes:
        groups.setdefault(e.group, []).append(e.total_reward)
    most = objective.world_model.max_return
    return [1 - statistics.mean(groups[g]) / most for g in sorted(groups)]


def _next_groups_lambda(recording: Recording, objective: Objective, weights: Tensor) -> Tensor:
    lambdas = _lambdas(recording, objective)
    factor = _each(recording, lambda e: lambdas[(e.group + 1) % len(lambdas)] / lambdas[e.group])
    return weights * factor


def _unscaled(recording: Recording, objective: Objective, weights: Tensor) -> Tensor:
    group = _each(recording, lambda e: float(e.group))
    sizes = torch.stack([((group == g) & (weights != 0)).sum() for g in group])
    return weights * sizes


# --- the pass over the batch ------------------------------------------------------------------------


def _averaged_micro_batches(run: Pass, rows: list[Row]) -> Outcome:
    first, second = (run(part) for part in (rows[: len(rows) // 3], rows[len(rows) // 3 :]))
    return Outcome(
        (first.policy_loss + second.policy_loss) / 2,
        (first.world_model_loss + second.world_model_loss) / 2,
        {name: (g + second.gradients[name]) / 2 for name, g in first.gradients.items()},
    )


def _padding_counted(run: Pass, rows: list[Row]) -> Outcome:
    found = run(rows)
    tokens = sum(row.roles.count("action") for row in rows)
    share = tokens / (len(rows) * max(len(row.ids) for row in rows))
    gradients = {name: g * share for name, g in found.gradients.items()}
    return Outcome(found.policy_loss * share, found.world_model_loss * share, gradients)


# --- the list ---------------------------------------------------------------------------------------


def _without_loss_clip(objective: Objective) -> Objective:
    assert objective.world_model is not None
    return replace(objective, world_model=replace(objective.world_model, rho=1.0))


_Planted = dict[str, tuple[str, Borders | None]]
"""by name: a sentence, and what is changed (``Fault``)"""
_POLICY: _Planted = {
    "observation_in_policy_loss": (
        "Tokens of the next observation are in the policy loss",
        _map_rows(_observations_as_actions),
    ),
    "action_mask_early": (
        "The mask of actions is one token too far to the left",
        _map_rows(_shifted("action", -1)),
    ),
    "action_mask_late": (
        "The mask of actions is one token too far to the right",
        _map_rows(_shifted("action", 1)),
    ),
    "end_token_untrained": (
        "The last token of each response (its end token, if it has one) is not trained",
        _map_rows(_without_end_tokens),
    ),
    "retokenised_turns": (
        "Responses are tokenised again from their text",
        Borders(rows=lambda recording, rows: [_with_retokenised_turns(r, recording) for r in rows]),
    ),
    "prefix_counted_twice": (
        "A dialogue becomes one row a turn, and earlier turns are trained again in each",
        Borders(rows=_a_row_each_turn),
    ),
    "neighbours_visible": (
        "Two episodes are packed into one row, and the second sees the first",
        Borders(rows=_two_in_a_row),
    ),
    "positions_restarted": (
        "Position ids start at 0 again in each turn",
        _hooked(_restart_positions),
    ),
    "attention_over_padding": (
        "Padding on the left is not masked in the attention",
        _hooked(lambda module, args, kwargs, first: (args, {**kwargs, "attention_mask": None})),
    ),
    "stale_old_logprobs": (
        "Old log-probabilities are of earlier weights than those that sampled",
        Borders(recording=_stale_logprobs),
    ),
    "stale_policy": (
        "The loss is computed with the weights that sampled, not with the present ones",
        _other_weights(policy="sampler"),
    ),
    "temperature_missing": (
        "Log-probabilities are taken at temperature 1, responses were sampled at 0.8",
        Borders(objective=lambda o: replace(o, temperature=1.0)),
    ),
    "truncated_as_success": (
        "An episode that its step budget ended is credited as a success",
        Borders(recording=_truncated_as_success),
    ),
    "penalty_lost": (
        "The penalty of invalid responses is not part of the return",
        Borders(
            recording=lambda r, _: _turns(r, lambda t: replace(t, reward=t.reward - t.penalty))
        ),
    ),
    "population_deviation": (
        "Advantages are divided by the population's standard deviation (n), not the sample's (n - 1)",
        Borders(advantages=_population_deviation),
    ),
    "statistics_across_groups": (
        "Mean and deviation are taken over all groups together",
        Borders(advantages=_across_groups),
    ),
    "statistics_per_turn": (
        "Mean and deviation are taken over turns, so that long episodes count more",
        Borders(advantages=_per_turn),
    ),
    "advantage_on_last_turn": (
        "Only the last turn of an episode has its advantage",
        Borders(advantages=_last_turn_only),
    ),
    "advantage_sign": (
        "The advantage has the wrong sign",
        Borders(advantages=lambda recording, values: -values),
    ),
    "clip_on_wrong_side": (
        "The surrogate takes the larger of both terms",
        None,
    ),
    "kl_to_sampler": (
        "KL is measured to the policy that sampled, not to the reference",
        _other_weights(reference="sampler"),
    ),
    "k1_for_k3": (
        "KL is estimated by the log-ratio (k1) in place of k3",
        None,
    ),
    "padding_in_mean": (
        "The mean over tokens counts padding",
        Borders(compute=_padding_counted),
    ),
    "micro_batches_averaged": (
        "Each micro-batch is divided by its own tokens, and the results are averaged",
        Borders(compute=_averaged_micro_batches),
    ),
}
_WORLD_MODEL: _Planted = {
    "last_observation_lost": (
        "The observation after the last action is not part of the row",
        _map_rows(_without_last_observation),
    ),
    "world_model_mask_late": (
        "The mask of observations is one token too far to the right",
        _map_rows(_shifted("env_output", 1)),
    ),
    "world_model_on_prompts": (
        "The world-model loss reads the prompt's text around the observation, too",
        _map_rows(_template_as_observation),
    ),
    "world_model_unclipped": (
        "The world-model loss keeps the tokens that are predicted well (no clip at rho)",
        Borders(objective=_without_loss_clip),
    ),
    "lambda_of_other_group": (
        "Transitions are weighed by the lambda of the next group",
        Borders(weights=_next_groups_lambda),
    ),
    "weights_unscaled": (
        "Weights are not divided by the number of supervised transitions of the group",
        Borders(weights=_unscaled),
    ),
}
FAULTS: dict[str, Fault] = {
    name: Fault(name, sentence, objective, borders)
    for objective, faults in (("policy", _POLICY), ("world_model", _WORLD_MODEL))
    for name, (sentence, borders) in faults.items()
}
"""the 30 faults by name, in the order of the data"""
