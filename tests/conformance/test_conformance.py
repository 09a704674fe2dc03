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
from paw_train.conformance import suite  # noqa: E402
from paw_train.conformance.engines.local import LocalTrainer  # noqa: E402
from paw_train.conformance.equations import ADVANTAGES, solve, world_model_weights  # noqa: E402
from paw_train.conformance.faults import FAULTS  # noqa: E402
from paw_train.conformance.recording import OBJECTIVES, Outcome, known_good, load  # noqa: E402


class OfTheEquations:
    """A trainer of another project that gives the known-good values, without an engine."""

    objectives: Sequence[str] = tuple(OBJECTIVES)

    def token_batch(self, recording: Any, objective: Any) -> Any:
        return suite.expected_rows(recording, objective)

    def advantages(self, recording: Any, objective: Any) -> Any:
        return torch.tensor(ADVANTAGES[objective.algorithm](recording), dtype=torch.float64)

    def world_model_weights(self, recording: Any, objective: Any) -> Any:
        return torch.tensor(world_model_weights(recording, objective), dtype=torch.float64)

    def loss_and_gradients(self, *given: Any) -> Outcome:
        return known_good(given[-1].name)  # given the objective last


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


def test_an_error_of_the_trainer_itself_is_a_refusal() -> None:
    class Strict(OfTheEquations):
        def loss_and_gradients(self, *args: Any) -> Outcome:
            raise ValueError("a mask marks the first token of a row")

    found = suite.plant(Strict(), FAULTS["action_mask_early"])  # type: ignore[arg-type]
    assert (found.state, found.message) == ("refused", "a mask marks the first token of a row")
