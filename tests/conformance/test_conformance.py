"""The conformance suite: its known-good values, its checks, and our engines against it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `train`")

from typer.testing import CliRunner  # noqa: E402

from paw_train.cli.program import app  # noqa: E402
from paw_train.conformance import checks, suite  # noqa: E402
from paw_train.conformance.engines.local import LocalTrainer  # noqa: E402
from paw_train.conformance.equations import ADVANTAGES, solve, world_model_weights  # noqa: E402
from paw_train.conformance.faults import FAULTS, Borders  # noqa: E402
from paw_train.conformance.protocol import Outcome, Row  # noqa: E402
from paw_train.conformance.recording import OBJECTIVES, known_good, load  # noqa: E402

NAMED = [name for name, fault in FAULTS.items() if fault.reported]
REPORTS = ("slime#1476", "slime#2263", "SkyRL#1277", "tinker-cookbook#822", "trl#6349")
"""of other trainers, beside verl#6376"""


class OfTheEquations:
    """A trainer of another project that computes the known-good values, without any code of an engine."""

    objectives: Sequence[str] = tuple(OBJECTIVES)

    def token_batch(self, recording: Any, objective: Any) -> list[Row]:
        return checks.expected_rows(recording, objective)

    def advantages(self, recording: Any, objective: Any) -> Any:
        return torch.tensor(ADVANTAGES[objective.algorithm](recording), dtype=torch.float64)

    def world_model_weights(self, recording: Any, objective: Any) -> Any:
        return torch.tensor(world_model_weights(recording, objective), dtype=torch.float64)

    def loss_and_gradients(
        self, recording: Any, rows: Any, advantages: Any, weights: Any, objective: Any
    ) -> Outcome:
        found = known_good(objective.name)
        return Outcome(found.policy_loss, found.world_model_loss, found.gradients)


class PolicyOnly(OfTheEquations):
    objectives = ("policy",)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_recorded_values_are_those_of_the_equations(name: str) -> None:
    found, recorded = solve(load(), OBJECTIVES[name]), known_good(name)
    assert found.policy_loss == pytest.approx(recorded.policy_loss, rel=1e-9)
    assert found.world_model_loss == pytest.approx(recorded.world_model_loss, rel=1e-9)
    assert torch.allclose(found.advantages, recorded.advantages)
    assert torch.allclose(found.world_model_weights, recorded.world_model_weights)
    for parameter, gradient in recorded.gradients.items():
        assert torch.allclose(found.gradients[parameter].float(), gradient, atol=1e-7)


def test_the_recording_holds_what_the_faults_need() -> None:
    recording = load()
    turns = recording.turns
    assert [turn.number for turn in turns] == list(range(len(turns)))
    assert any(t.malformed for t in turns) and any(t.penalty for t in turns)
    assert any(t.truncated and not t.success for t in turns)
    for episode in recording.episodes:
        for turn in episode.turns:
            assert episode.ids[slice(*turn.action_tokens)] == turn.response_ids
            observed = recording.tokenizer.decode(episode.ids[slice(*turn.observation_tokens)])
            assert observed == turn.message[slice(*turn.observation)]
    clipped = {(good, low) for good, low in _clipped(recording)}
    assert clipped == {(True, False), (False, True)}, "both signs of the advantage meet the clip"


def _clipped(recording: Any) -> Any:
    """(advantage above 0, ratio below 1) of the tokens whose gradient the clip takes away."""
    model = recording.model("policy")
    advantages = known_good("policy").advantages
    for episode in recording.episodes:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([episode.ids])).logits[0] / 0.8
        for turn in episode.turns:
            for place, old in zip(range(*turn.action_tokens), turn.logprobs["policy"], strict=True):
                ratio = (logits[place - 1].log_softmax(-1)[episode.ids[place]] - old).exp().item()
                good = advantages[turn.number] > 0
                if (good and ratio > 1.2) or (not good and ratio < 0.8):
                    yield bool(good), ratio < 1


@pytest.mark.slow
def test_the_local_engine_conforms_and_every_fault_in_it_is_caught() -> None:
    result = suite.run(LocalTrainer(), "local")
    assert result.conforms, result.deviations
    assert result.count("caught", "refused") == len(FAULTS) == 37
    found = {f.fault: (f.state, f.checks) for f in result.findings}
    assert found["retokenised_turns"][0] == "caught" and "tokens" in found["retokenised_turns"][1]
    assert found["clip_on_wrong_side"] == ("caught", ["loss", "gradients"])
    assert found["lambda_of_other_group"] == ("caught", ["weights", "loss", "gradients"])
    assert found["gae_past_the_end"] == ("caught", ["advantages", "loss", "gradients"])


def test_a_row_each_turn_is_a_fault_by_its_mean_alone() -> None:
    fault = FAULTS["mean_over_turn_rows"]
    assert suite.plant(LocalTrainer(), fault).checks == ["loss", "gradients"]
    token_mean = replace(fault, borders=replace(fault.borders, objective=lambda o: o))
    assert suite.plant(LocalTrainer(), token_mean).state == "missed"


@pytest.mark.slow
def test_trl_conforms_and_faults_in_it_are_caught() -> None:
    pytest.importorskip("trl", reason="the extra `sft`")
    result = suite.run(suite.trainer_of("trl"), "trl", ("k1_for_k3", "weights_unscaled", *NAMED))
    assert result.conforms, result.deviations
    states = {finding.reported: finding.state for finding in result.findings}
    assert states.pop("verl#6376") == "cannot occur"  # GRPOTrainer has no REINFORCE++
    assert states == dict.fromkeys(("", *REPORTS), "caught")


def test_a_trainer_of_another_project_runs_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    faults = [f"--fault={name}" for name in ("statistics_across_groups", "clip_on_wrong_side")]
    given = ["conformance", "--engine", f"{Path(__file__).stem}:OfTheEquations", "--json", *faults]
    done = CliRunner().invoke(app, given)
    result = json.loads(done.stdout)
    assert done.exit_code == 0 and result["conforms"]
    assert [f["state"] for f in result["findings"]] == ["caught", "not planted"]


def test_the_table_names_the_report_and_the_reason_why_a_fault_cannot_occur(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    given = ["conformance", "--engine", f"{Path(__file__).stem}:PolicyOnly"]
    done = CliRunner().invoke(app, [*given, "--fault=return_reset_at_observation"])
    for part in ("return_reset_at_observation", "(verl#6376)", "cannot occur", "does not train"):
        assert part in done.stdout
    assert "0 of 1 noticed, 0 missed, 1 cannot occur, 0 not planted" in done.stdout


def test_a_fault_without_an_effect_is_missed() -> None:
    harmless = replace(FAULTS["stale_policy"], borders=Borders())
    assert suite.plant(OfTheEquations(), harmless).state == "missed"


def test_a_fault_in_an_objective_that_a_trainer_lacks_cannot_occur() -> None:
    found = suite.plant(PolicyOnly(), FAULTS["world_model_unclipped"])
    assert found.state == "cannot occur" and "world_model" in found.message


def test_an_error_of_the_trainer_itself_is_a_refusal() -> None:
    class Strict(OfTheEquations):
        def loss_and_gradients(self, *args: Any) -> Outcome:
            raise ValueError("a mask marks the first token of a row")

    found = suite.plant(Strict(), FAULTS["action_mask_early"])  # type: ignore[arg-type]
    assert (found.state, found.message) == ("refused", "a mask marks the first token of a row")
