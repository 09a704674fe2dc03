"""The reference policy, against which KL is measured: the policy as it was when RL began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from paw_train.losses.batch import Batch
from paw_train.policies.local import lora

if TYPE_CHECKING:
    from paw_train.policies.local.policy import LocalPolicy


class Reference(Protocol):
    """A frozen policy."""

    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """As ``LocalPolicy.logprobs``, without gradient."""

    def offload(self) -> None:
        """Gives back the accelerator's memory until the next call."""


class AdapterReference:
    """The policy's own model with another adapter, or with none: no second copy of the weights."""

    def __init__(self, policy: LocalPolicy) -> None:
        self.policy = policy
        lora.add_reference(policy.model)

    @torch.no_grad()
    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """As ``LocalPolicy.logprobs``, without gradient."""
        with lora.reference_active(self.policy.model):
            return self.policy.logprobs(batch, temperature)

    def offload(self) -> None:
        """Nothing to give back."""


class CopyReference:
    """A copy of the policy."""

    def __init__(self, copy: LocalPolicy, offloaded: bool) -> None:
        self.copy, self.offloaded = copy, offloaded
        copy.model.requires_grad_(False).eval()
        self.offload()

    @torch.no_grad()
    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """As ``LocalPolicy.logprobs``, without gradient."""
        if self.offloaded:
            self.copy.model.to(self.copy.device)
        return self.copy.logprobs(batch, temperature)

    def offload(self) -> None:
        """Moves the copy to the CPU, if it is to stay there between updates."""
        if self.offloaded:
            self.copy.model.to("cpu")
