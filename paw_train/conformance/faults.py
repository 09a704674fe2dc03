"""Faults of agent trainers, each planted at a border between the methods of ``protocol.Trainer``.

A trainer that can plant a fault in its own code does so instead (``Trainer.plant``). Two faults have no such
border and are planted only by trainers. Some were reported in other trainers (``Fault.reported``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from paw_train.conformance import equations
from paw_train.conformance.recording import Episode, Objective, Outcome, Recording, Turn
from paw_train.rollouts.tokens import ACTION, CONTEXT, OBSERVATION, TokenRow

Pass = Callable[[Sequence[TokenRow]], Outcome]
"""a trainer's losses and gradients for some rows"""


@dataclass(frozen=True)
class Borders:
    """Changes to data on their way between a trainer's methods; by default none."""

    recording: Callable[[Recording, Objective], Recording] = lambda recording, objective: recording
    """what the trainer is given"""
    objective: Callable[[Objective], Objective] = lambda objective: objective
    """what the trainer is asked to minimise"""
    rows: Callable[[Recording, list[TokenRow]], list[TokenRow]] = lambda recording, rows: rows
    advantages: Callable[[Recording, Tensor], Tensor] = lambda recording, values: values
    weights: Callable[[Recording, Objective, Tensor], Tensor] = lambda recording, objective, w: w
    compute: Callable[[Pass, list[TokenRow]], Outcome] = lambda run, rows: run(rows)
    """the pass over the batch: a function of the trainer's own pass and the rows"""


@dataclass(frozen=True)
class Fault:
    """A change in what a trainer would compute."""

    name: str
    objective: str
    """the objective in ``recording.OBJECTIVES`` under which it is looked for"""
    borders: Borders | None
    """``None``: only a trainer's own code can have it"""
    reported: str = ""
    """``project#number``: an issue or a pull request that reported it in another trainer"""


# --- rows -------------------------------------------------------------------------------------------


def _map_rows(change: Callable[[TokenRow], TokenRow]) -> Borders:
    return Borders(rows=lambda recording, rows: [change(row) for row in rows])


def _places(row: TokenRow, role: int) -> dict[int, int]:
    """The transitions of the tokens with a role, by the token's position."""
    marks = enumerate(zip(row.role, row.turn, strict=True))
    return {place: number for place, (own, number) in marks if own == role}


def _marked(row: TokenRow, role: int, places: Mapping[int, int]) -> TokenRow:
    """The row with exactly the given positions marked with a role and their transitions."""
    roles = [CONTEXT if r == role else r for r in row.role]
    numbers = [-1 if r == role else n for r, n in zip(row.role, row.turn, strict=True)]
    for place, number in places.items():
        if 0 < place < len(row.ids):
            roles[place], numbers[place] = role, number
    return replace(row, role=roles, turn=numbers)


def _shifted(role: int, by: int, first: bool = True) -> Borders:
    """Moves the mask of a role; ``first`` says whether that of a row's first transition moves too."""

    def change(row: TokenRow) -> TokenRow:
        places = _places(row, role)
        kept = -1 if first else min(places.values())
        return _marked(row, role, {t if n == kept else t + by: n for t, n in places.items()})

    return _map_rows(change)


def _observations_as_actions(row: TokenRow) -> TokenRow:
    return replace(row, role=[ACTION if r == OBSERVATION else r for r in row.role])


def _without_end_tokens(row: TokenRow) -> TokenRow:
    places = _places(row, ACTION)
    return _marked(row, ACTION, {t: n for t, n in places.items() if places.get(t + 1) == n})


def _rewritten(role: int, tokens: Callable[[Recording, Turn, list[int]], list[int]]) -> Borders:
    """Replaces the tokens of each action, or of each observation."""

    def change(recording: Recording, row: TokenRow) -> TokenRow:
        result, start = TokenRow(), 0
        for (own, number), span in groupby(zip(row.role, row.turn, strict=True)):
            end = start + len(list(span))
            ids = row.ids[start:end]
            if own == role:
                ids = tokens(recording, recording.turns[number], ids)
            logprob = [*row.logprob[start:end], *[0.0] * len(ids)][: len(ids)]
            result.append(ids, own, number, logprob)
            start = end
        return result

    return Borders(rows=lambda recording, rows: [change(recording, row) for row in rows])


def _encoded(recording: Recording, turn: Turn, ids: list[int]) -> list[int]:
    """The tokens of a response's text, with the end token if there was one."""
    found = list(recording.tokenizer(turn.response, add_special_tokens=False)["input_ids"])
    return found + [i for i in ids[-1:] if i == recording.tokenizer.eos_token_id]


def _without_last_observation(row: TokenRow) -> TokenRow:
    return row.cut(1 + max(_places(row, ACTION)))


def _row_each_turn(rows: Sequence[TokenRow], earlier: bool) -> list[TokenRow]:
    """Rows that end after each turn, in which earlier turns are trained again or not."""
    found = []
    for row in rows:
        for number in sorted(set(row.turn) - {-1}):
            cut = row.cut(1 + max(t for t, n in enumerate(row.turn) if n == number))
            for role in () if earlier else (ACTION, OBSERVATION):
                own = {t: n for t, n in _places(cut, role).items() if n == number}
                cut = _marked(cut, role, own)
            found.append(cut)
    return found


def _two_in_a_row(recording: Recording, rows: list[TokenRow]) -> list[TokenRow]:
    return [
        TokenRow(a.ids + b.ids, a.role + b.role, a.turn + b.turn, a.logprob + b.logprob)
        for a, b in zip(rows[::2], rows[1::2], strict=True)
    ]


def _template_as_observation(row: TokenRow) -> TokenRow:
    """The row in which everything between two responses is part of an observation."""
    actions, seen, places, current = _places(row, ACTION), _places(row, OBSERVATION), {}, -1
    for t in range(len(row.ids)):
        current = actions.get(t, current)
        if current >= 0 and t not in actions and (t in seen or current < max(row.turn)):
            places[t] = current
    return _marked(row, OBSERVATION, places)


# --- what the trainer is given ----------------------------------------------------------------------


def _turns(change: Callable[[Turn], Turn]) -> Borders:
    return Borders(recording=lambda recording, _: _with_turns(recording, change))


def _with_turns(recording: Recording, change: Callable[[Turn], Turn]) -> Recording:
    episodes = [replace(e, turns=[change(turn) for turn in e.turns]) for e in recording.episodes]
    return replace(recording, episodes=episodes)


def _other_weights(**of: str) -> Borders:
    def change(recording: Recording, objective: Objective) -> Recording:
        swapped = {name: recording.weights[source] for name, source in of.items()}
        return replace(recording, weights={**recording.weights, **swapped})

    return Borders(recording=change)


@torch.no_grad()
def _stale_logprobs(recording: Recording, objective: Objective) -> Recording:
    """Sampled responses with the log-probabilities of the reference."""
    model, known = recording.model("reference"), {}
    for episode in recording.episodes:
        scores = equations.log_softmax(model, episode, objective.temperature)
        for turn in episode.turns:
            own = equations.of(scores, episode, turn.action_tokens)
            known[turn.number] = {**turn.logprobs, objective.name: [p.item() for p in own]}
    changed = _with_turns(recording, lambda turn: replace(turn, logprobs=known[turn.number]))
    return replace(changed, weights={**changed.weights, "sampler": changed.weights["reference"]})


def _hooked(hook: Callable[[Any, tuple[Any, ...], dict[str, Any], int], Any]) -> Borders:
    """Calls the models' decoder with other arguments."""

    def change(recording: Recording, objective: Objective) -> Recording:
        first = recording.tokenizer.convert_tokens_to_ids("<user>")

        def attach(model: Any) -> None:
            model.get_decoder().register_forward_pre_hook(
                lambda module, args, kwargs: hook(module, args, kwargs, first), with_kwargs=True
            )

        return replace(recording, changes=[*recording.changes, attach])

    return Borders(recording=change)


def _restart_positions(module: Any, args: tuple[Any, ...], kwargs: Any, first: int) -> Any:
    ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
    place = torch.arange(ids.shape[1]).expand(ids.shape)
    start = torch.where(ids == first, place, 0).cummax(-1).values
    return args, {**kwargs, "position_ids": place - start}


# --- advantages and weights -------------------------------------------------------------------------


def _advantages_of(change: Callable[[Recording], list[Episode]], name: str = "grpo") -> Borders:
    """The advantages that an algorithm gives to other episodes, with as many turns."""

    def changed(recording: Recording, advantages: Tensor) -> Tensor:
        other = replace(recording, episodes=change(recording))
        return torch.tensor(equations.ADVANTAGES[name](other), dtype=torch.float64)

    return Borders(advantages=changed)


def _by_turn(worth: Callable[[Episode, Turn], float]) -> Callable[[Recording], list[Episode]]:
    """One episode for each turn."""
    return lambda recording: [
        replace(e, turns=[replace(turn, reward=worth(e, turn))])
        for e in recording.episodes
        for turn in e.turns
    ]


def _other_starts(recording: Recording) -> list[Episode]:
    """Moves the first member of each group to the next group, whose members start in another state."""
    size, count = recording.group_size, len(recording.episodes) // recording.group_size
    moved = [(e.group + (n % size == 0)) % count for n, e in enumerate(recording.episodes)]
    return [replace(e, group=g) for e, g in zip(recording.episodes, moved, strict=True)]


def _last_turn_only(recording: Recording, advantages: Tensor) -> Tensor:
    last = {e.turns[-1].number for e in recording.episodes}
    kept = torch.tensor([float(turn.number in last) for turn in recording.turns])
    return advantages * kept


def _group_of_turn(recording: Recording) -> list[int]:
    return [e.group for e in recording.episodes for _ in e.turns]


def _next_groups_lambda(recording: Recording, objective: Objective, weights: Tensor) -> Tensor:
    assert objective.world_model is not None
    own = equations.lambdas(recording, objective.world_model)
    factor = {g: own[(g + 1) % len(own)] / own[g] for g in own}
    return weights * torch.tensor([factor[g] for g in _group_of_turn(recording)])


def _unscaled(recording: Recording, objective: Objective, weights: Tensor) -> Tensor:
    group = torch.tensor(_group_of_turn(recording))
    sizes = torch.stack([((group == g) & (weights != 0)).sum() for g in group])
    return weights * sizes


# --- the pass over the batch ------------------------------------------------------------------------


def _averaged_micro_batches(run: Pass, rows: list[TokenRow]) -> Outcome:
    first, second = (run(part) for part in (rows[: len(rows) // 3], rows[len(rows) // 3 :]))
    return Outcome(
        (first.policy_loss + second.policy_loss) / 2,
        (first.world_model_loss + second.world_model_loss) / 2,
        {name: (g + second.gradients[name]) / 2 for name, g in first.gradients.items()},
    )


def _padding_counted(run: Pass, rows: list[TokenRow]) -> Outcome:
    found = run(rows)
    tokens = sum(row.role.count(ACTION) for row in rows)
    share = tokens / (len(rows) * max(len(row.ids) for row in rows))
    gradients = {name: g * share for name, g in found.gradients.items()}
    return Outcome(found.policy_loss * share, found.world_model_loss * share, gradients)


# --- the list ---------------------------------------------------------------------------------------


def _without_loss_clip(objective: Objective) -> Objective:
    assert objective.world_model is not None
    return replace(objective, world_model=replace(objective.world_model, rho=1.0))


_PLANTED: Mapping[str, Mapping[str, Borders | None]] = {
    "policy": {
        # Tokens of the next observation are in the policy loss.
        "observation_in_policy_loss": _map_rows(_observations_as_actions),
        # The mask of actions is one token too far to the left.
        "action_mask_early": _shifted(ACTION, -1),
        # The mask of actions is one token too far to the right.
        "action_mask_late": _shifted(ACTION, 1),
        # From the second turn on, masks are placed by the length of a prefix measured elsewhere.
        "mask_by_measured_prefix": _shifted(ACTION, 2, first=False),
        # The last token of each response (its end token, if it has one) is not trained.
        "end_token_untrained": _map_rows(_without_end_tokens),
        # Responses are tokenised again from their text.
        "retokenised_turns": _rewritten(ACTION, _encoded),
        # Consecutive results are rendered one by one, with a turn boundary that the template does not
        # write.
        "results_as_messages": _rewritten(
            OBSERVATION, lambda r, _, ids: [*ids, r.tokenizer.convert_tokens_to_ids("<user>")]
        ),
        # A dialogue becomes one row a turn, and each row trains the earlier turns again.
        "prefix_counted_twice": Borders(
            rows=lambda recording, rows: _row_each_turn(rows, earlier=True)
        ),
        # A dialogue becomes one row a turn, and the mean is over rows: long episodes count more.
        "mean_over_turn_rows": Borders(
            rows=lambda recording, rows: _row_each_turn(rows, earlier=False),
            objective=lambda o: replace(o, aggregation="sequence-mean"),
        ),
        # Two episodes are packed into one row, and the second sees the first.
        "neighbours_visible": Borders(rows=_two_in_a_row),
        # Position ids start at 0 again in each turn.
        "positions_restarted": _hooked(_restart_positions),
        # Padding on the left is not masked in the attention.
        "attention_over_padding": _hooked(
            lambda module, args, kwargs, first: (args, {**kwargs, "attention_mask": None})
        ),
        # Old log-probabilities come from earlier weights than those that sampled.
        "stale_old_logprobs": Borders(recording=_stale_logprobs),
        # The loss is computed with the weights that sampled, not with the present ones.
        "stale_policy": _other_weights(policy="sampler"),
        # Responses of earlier weights are trained with a ratio that no clip limits (0.001 to 2).
        "stale_without_clip": Borders(objective=lambda o: replace(o, clip=0.999)),
        # Log-probabilities are taken at temperature 1, but responses were sampled at 0.8.
        "temperature_missing": Borders(objective=lambda o: replace(o, temperature=1.0)),
        # An episode that its step budget ended is credited as a success.
        "truncated_as_success": _turns(
            lambda t: replace(t, reward=t.reward + 10.0 * (t.truncated and not t.success))
        ),
        # The penalty of invalid responses is not part of the return.
        "penalty_lost": _turns(lambda turn: replace(turn, reward=turn.reward - turn.penalty)),
        # Advantages are divided by the population's standard deviation (n), not the sample's (n - 1).
        "population_deviation": Borders(
            advantages=lambda r, values: values * math.sqrt(r.group_size / (r.group_size - 1))
        ),
        # Mean and deviation are taken over all groups together.
        "statistics_across_groups": _advantages_of(
            lambda recording: recording.episodes, "reinforce_pp"
        ),
        # Mean and deviation are taken over turns, so that long episodes count more.
        "statistics_per_turn": _advantages_of(_by_turn(lambda e, turn: e.total_reward)),
        # A group has a member that started in another state, and compares it nevertheless.
        "group_starts_differ": _advantages_of(_other_starts),
        # Only the last turn of an episode has its advantage.
        "advantage_on_last_turn": Borders(advantages=_last_turn_only),
        # The advantage has the wrong sign.
        "advantage_sign": Borders(advantages=lambda recording, values: -values),
        # The surrogate takes the larger of its two terms.
        "clip_on_wrong_side": None,
        # KL is measured against the policy that sampled, not against the reference.
        "kl_to_sampler": _other_weights(reference="sampler"),
        # KL is estimated by the log-ratio (k1) in place of k3.
        "k1_for_k3": None,
        # The mean over tokens counts padding.
        "padding_in_mean": Borders(compute=_padding_counted),
        # Each micro-batch is divided by its own tokens, and the results are averaged.
        "micro_batches_averaged": Borders(compute=_averaged_micro_batches),
    },
    "reinforce_pp": {
        # The return of a turn ends at the next observation, so only the last turn is rewarded for success.
        "return_reset_at_observation": _advantages_of(
            _by_turn(lambda e, turn: turn.reward), "reinforce_pp"
        )
    },
    "ppo": {
        # Advantage estimation continues from an episode's last turn into the next episode.
        "gae_past_the_end": _advantages_of(lambda r: [replace(r.episodes[0], turns=r.turns)], "ppo")
    },
    "world_model": {
        # The observation after the last action is not part of the row.
        "last_observation_lost": _map_rows(_without_last_observation),
        # The mask of observations is one token too far to the right.
        "world_model_mask_late": _shifted(OBSERVATION, 1),
        # The world-model loss reads the prompt's text around the observation, too.
        "world_model_on_prompts": _map_rows(_template_as_observation),
        # The world-model loss keeps the tokens that are predicted well (no clip at rho).
        "world_model_unclipped": Borders(objective=_without_loss_clip),
        # Transitions are weighted by the lambda of the next group.
        "lambda_of_other_group": Borders(weights=_next_groups_lambda),
        # Weights are not divided by the number of supervised transitions of the group.
        "weights_unscaled": Borders(weights=_unscaled),
    },
}
"""by the objective under which a fault is looked for, then by its name: what is changed"""
_REPORTED = {
    "mask_by_measured_prefix": "slime#1476",
    "results_as_messages": "slime#2263",
    "mean_over_turn_rows": "SkyRL#1277",
    "stale_without_clip": "tinker-cookbook#822",
    "group_starts_differ": "trl#6349",
    "return_reset_at_observation": "verl#6376",
}
"""by name: ``project#number`` of an issue or a pull request that reported it in another trainer"""
FAULTS: dict[str, Fault] = {
    name: Fault(name, objective, borders, _REPORTED.get(name, ""))
    for objective, faults in _PLANTED.items()
    for name, borders in faults.items()
}
"""the faults by name, in the order of the data"""
