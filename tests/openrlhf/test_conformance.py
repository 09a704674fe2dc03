"""The OpenRLHF engine against the known-good values of the conformance suite."""

from __future__ import annotations

import os

import pytest

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from paw_train.conformance import suite
from paw_train.conformance.faults import FAULTS


@pytest.mark.slow
def test_the_engine_conforms_and_faults_in_it_are_caught() -> None:
    named = [name for name, fault in FAULTS.items() if fault.reported]
    faults = ("attention_over_padding", "k1_for_k3", "lambda_of_other_group", *named)
    result = suite.run(suite.trainer_of("openrlhf"), "openrlhf", faults)
    assert result.conforms, result.deviations
    assert [finding.state for finding in result.findings] == ["caught"] * 9
