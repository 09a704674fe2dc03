"""A policy that runs in this process: any Hugging Face causal language model with a chat template."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paw_gym.internals.files import user_path
from paw_train.forks import processes_for
from paw_train.losses.batch import Batch
from paw_train.losses.lm_head_logprobs import TokenScorer
from paw_train.policies.local import lora
from paw_train.policies.local.attention import use_grouped_attention
from paw_train.policies.local.decoder import release_buffers
from paw_train.policies.local.loading import (
    Place,
    enable_recomputation,
    load_model,
    load_tokenizer,
    naming_damage,
    no_progress_bars,
    read_weights,
    recomputed,
)
from paw_train.policies.local.lora import Base
from paw_train.policies.local.session import LocalSession
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Sampling
from paw_train.rollouts.scoring import batch_logprobs
from paw_train.settings.model import LoraSettings
from paw_train.settings.rollout import KEPT_CACHE_SHARE


class LocalPolicy:
    """A model, its tokenizer, and the two things that are done with them: answering and scoring.

    Args:
        model: a Hugging Face causal language model, with or without a LoRA adapter.
        base: with an adapter: the model below it, which is written beside it.
    """

    trainable = True

    def __init__(self, model: Any, tokenizer: Any, base: Base | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.base = base
        self.chat = ChatFormat(tokenizer)
        self.device = next(model.parameters()).device
        use_grouped_attention(model)
        # "falling back to its reference implementation": for a short convolution, once, on every CPU
        logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)
        if self.device.type == "cuda":
            # cuDNN's attention builds a plan, for half a second, for every new length of the keys
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.scorer = TokenScorer(model)

    @property
    def processes(self) -> int:
        """Number of processes that share the work on a batch."""
        return processes_for(self.model)

    @property
    def context_tokens(self) -> int | None:
        """The longest sequence that the model was made for, if its configuration gives it."""
        config = self.model.get_decoder().config
        found: int | None = getattr(config, "max_position_embeddings", None)
        return found

    def require_positions(self, tokens: int) -> None:
        """Raises a ``ValueError`` if the model has a table of positions, and fewer there than ``tokens``.

        Rotary positions have no end: of them, ``context_tokens`` says how far they were trained.
        """
        rotary = getattr(self.model.get_decoder().config, "rope_parameters", None)
        if not rotary and (self.context_tokens or tokens) < tokens:
            raise ValueError(
                f"rollout.max_context_tokens={tokens}, and this model has {self.context_tokens} positions "
                f"and can read no more: set rollout.max_context_tokens={self.context_tokens} or less."
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "cpu",
        dtype: str = "float32",
        *,
        attention: str | None = None,
        adapter: LoraSettings | None = None,
        gradient_checkpointing: bool = False,
        seed: int = 0,
        revision: str | None = None,
    ) -> LocalPolicy:
        """Loads a model from a folder, a hub, a GGUF file or an installed package that carries one.

        Args:
            path: of the model; or of a folder with a LoRA adapter, which is put on its own model.
            attention: as ``attn_implementation`` of transformers.
            adapter: train a fresh adapter of this form instead of all weights; its ``base`` is the model
                below a saved one.
            revision: branch, tag or commit of a model on the hub; with an adapter, of its model.

        Raises:
            ValueError: there is no such model, its tokenizer has no chat template, or an adapter does
                not belong to the model that it names.
        """
        wanted = adapter or LoraSettings()
        base: Base | None = None
        there = user_path(path)
        adapted = [folder for folder in (there, there / "model") if lora.is_adapter(folder)]
        if adapted:
            with naming_damage(Place(str(adapted[0]))):
                model, tokenizer, base = _load_adapted(
                    adapted[0], dtype, attention, device, wanted, revision
                )
        else:
            model, tokenizer = load_model(path, dtype, attention, device, revision)
            if wanted.rank:
                base = Base.of(model, path, revision)
                lora.attach(model, wanted, seed)
        if gradient_checkpointing:
            enable_recomputation(model)
        return cls(model.to(torch.device(device)), tokenizer, base)

    @property
    def pad_id(self) -> int:
        """Id that pads a batch; never read."""
        return int(self.tokenizer.pad_token_id or 0)

    def session(self, sampling: Sampling, growing: bool) -> LocalSession:
        """Opens a session on a batch of episodes (see ``rollouts.policy.Policy``)."""
        return LocalSession(self.model, self.chat, sampling, growing)

    def rest(self) -> None:
        """Gives back what a rollout left on a GPU, if it takes much of it: training comes next."""
        if self.device.type == "cuda" and torch.cuda.is_available():
            whole = torch.cuda.get_device_properties(self.device).total_memory
            release_buffers(self.model, KEPT_CACHE_SHARE * whole)

    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """[B, T] log-probabilities, with gradient, of the tokens that are read (``Batch.scored``), else 0.

        Actions are scored at the temperature that they were sampled at (0 counts as 1); observations at 1.
        """
        with recomputed(self.model):
            return batch_logprobs(self.scorer, batch, temperature, False)[0]

    def logprobs_and_entropy(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        """``logprobs``, and the entropy [B, T] in nats of each action token's distribution, with gradient."""
        with recomputed(self.model):
            result, entropies = batch_logprobs(self.scorer, batch, temperature, True)
        assert entropies is not None
        return result, entropies

    def logits(self, batch: Batch, tokens: Tensor) -> Tensor:
        """[P, V] logits, with gradient, for tokens numbered ``b * T + t`` (t > 0), in the model's type."""
        return self.scorer.logits(batch.ids, tokens)

    def whole_logits(self, batch: Batch) -> Tensor:
        """[B, T, V] logits of what follows each token, with gradient, in the model's precision."""
        output = self.model(input_ids=batch.ids, use_cache=False)
        logits: Tensor = output.logits
        return logits

    def save(self, folder: Path) -> None:
        """Writes model and tokenizer in the Hugging Face form; of a model with an adapter, the adapter."""
        no_progress_bars()
        if lora.has_adapter(self.model):
            lora.save(self.model, folder, self.base)
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        """Sets the weights to those that ``save`` wrote."""
        adapted = lora.has_adapter(self.model)
        if adapted != lora.is_adapter(folder):
            raise ValueError(
                f"{folder} holds {'a whole model' if adapted else 'an adapter'}, but this policy "
                f"{'trains an adapter' if adapted else 'has none'}: model.lora.rank differs."
            )
        if not adapted:
            _load_whole(self.model, folder)
            return
        saved = lora.saved_base(folder)
        if saved is not None and self.base is not None:
            saved.check(self.base, folder)
        lora.load_weights(self.model, folder)

    def reference(self, offload: bool = False) -> Reference:
        """This policy as it is now, frozen: a copy of its adapter if only that is trained, or of all."""
        if lora.has_adapter(self.model) and self.model.peft_config[lora.TRAINED].bias == "none":
            return _AdapterReference(self)
        return Reference(LocalPolicy(copy.deepcopy(self.model), self.tokenizer), offload)


class Reference:
    """The policy as it was when RL began, for KL; an ``offloaded`` copy is on the CPU between updates."""

    def __init__(self, policy: LocalPolicy, offloaded: bool = False) -> None:
        self.policy, self.offloaded = policy, offloaded
        policy.model.requires_grad_(False).eval()
        self.offload()

    @torch.no_grad()
    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """As ``LocalPolicy.logprobs``, without gradient."""
        if self.offloaded:
            self.policy.model.to(self.policy.device)
        return self.policy.logprobs(batch, temperature)

    def offload(self) -> None:
        """Gives back the accelerator's memory until the next call, if the copy is to be offloaded."""
        if self.offloaded:
            self.policy.model.to("cpu")


class _AdapterReference(Reference):
    """The policy's own model with another adapter, or with none: no second copy of the weights."""

    def __init__(self, policy: LocalPolicy) -> None:
        self.policy, self.offloaded = policy, False
        lora.add_reference(policy.model)

    @torch.no_grad()
    def logprobs(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """As ``LocalPolicy.logprobs``, without gradient."""
        with lora.reference_active(self.policy.model):
            return self.policy.logprobs(batch, temperature)


def _load_adapted(
    folder: Path,
    dtype: str,
    attention: str | None,
    device: str,
    wanted: LoraSettings,
    revision: str | None,
) -> tuple[Any, Any, Base]:
    saved = lora.saved_base(folder)
    path, revision = lora.base_of(folder, wanted.base, revision)
    model, tokenizer = load_model(path, dtype, attention, device, revision)
    base = Base.of(model, path, revision)
    if saved is not None:
        saved.check(base, folder)
    lora.load(model, folder)
    rank = model.peft_config[lora.TRAINED].r
    if wanted.rank not in (0, rank):
        raise ValueError(
            f"The adapter {folder} has rank {rank}, the settings ask for {wanted.rank}; "
            "leave model.lora.rank at 0 to train on with the adapter as it is."
        )
    if (folder / "tokenizer_config.json").is_file():
        tokenizer = load_tokenizer(folder)
    return model, tokenizer, base


def _load_whole(model: Any, folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"))
    weights = {name: tensor for file in files for name, tensor in read_weights(file).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or [])
    if set(missing) - tied or unexpected:
        raise ValueError(f"The weights in {folder} are damaged: {missing=}, {unexpected=}.")
    model.tie_weights()
