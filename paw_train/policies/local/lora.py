"""Low-rank adapters (Hu et al. 2021, "LoRA") on a pretrained model, through the library peft."""

from __future__ import annotations

import copy
import json
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paw_gym.internals.files import user_path
from paw_train.policies.local.loading import model_signature, read_weights, weights_fingerprint
from paw_train.settings.model import LoraSettings

TRAINED, REFERENCE = "default", "reference"
"""names of the adapter that learns and of its frozen copy"""
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""of a model on the hub, or of an installed package that carries one"""
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_TARGETS: str | list[str] = "all-linear"
"""layers with adapters: all linear ones but the LM head"""
_PREFIX = "base_model.model."
"""of the names in an adapter's file, as peft writes them"""
BASE_FILE = "paw_base.json"
"""beside a saved adapter: which model it belongs to"""


@dataclass(frozen=True)
class Base:
    """The model below an adapter."""

    path: str
    """as ``LocalPolicy.load`` takes it; a folder is absolute"""
    signature: str
    """of its architecture"""
    fingerprint: str
    """of its values"""
    revision: str | None = None
    """of a model on the hub"""

    @classmethod
    def of(cls, model: Any, path: str | Path, revision: str | None) -> Base:
        """Describes a loaded model."""
        there = user_path(path)
        name = str(there.resolve()) if there.exists() else str(path)
        return cls(name, model_signature(model), weights_fingerprint(model), revision)

    def check(self, other: Base, where: Path) -> None:
        """Raises a ``ValueError`` if the adapter in ``where`` was trained on another model than ``other``."""
        same = (self.signature, self.fingerprint) == (other.signature, other.fingerprint)
        if not same:
            what = "weights" if self.signature == other.signature else "architectures"
            raise ValueError(
                f"The adapter {where} was trained on {self.path!r}, and {other.path!r} is another model: "
                f"their {what} differ. Perhaps it has changed since."
            )


def is_adapter(folder: str | Path) -> bool:
    """True if a folder holds an adapter instead of a whole model."""
    return (Path(folder) / "adapter_config.json").is_file()


def has_adapter(model: Any) -> bool:
    """True if a model carries an adapter that learns."""
    return TRAINED in (getattr(model, "peft_config", None) or {})


def attach(model: Any, settings: LoraSettings, seed: int) -> None:
    """Freezes a model and puts a fresh adapter on it, which changes nothing yet."""
    import peft

    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=2 * settings.rank,
        target_modules=_TARGETS,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _add(model, config)


def load(model: Any, folder: Path) -> None:
    """Puts a saved adapter on a model; it can be trained further."""
    import peft

    config = peft.LoraConfig.from_pretrained(str(folder))
    config.inference_mode = False
    _add(model, config)
    load_weights(model, folder)


def _add(model: Any, config: Any) -> None:
    model.requires_grad_(False)
    model.add_adapter(config, TRAINED)
    _widen(model)


def load_weights(model: Any, folder: Path) -> None:
    """Sets the weights of the adapter that a model has to saved ones."""
    from peft import set_peft_model_state_dict

    file = folder / "adapter_model.safetensors"
    saved = {name.removeprefix(_PREFIX): value for name, value in read_weights(file).items()}
    if strange := sorted(saved.keys() ^ _weights(model).keys()):
        raise ValueError(
            f"The adapter {folder} does not fit this model's: {strange[0]} is in one of them only "
            "(their layers differ)."
        )
    try:
        set_peft_model_state_dict(model, saved, adapter_name=TRAINED)
    except RuntimeError as error:
        raise ValueError(
            f"The adapter {folder} does not fit this model's (model.lora.rank differs): {error}"
        ) from error


def _weights(model: Any) -> dict[str, Any]:
    from peft import get_peft_model_state_dict

    # "auto" would ask a model hub, at every checkpoint, whether the vocabulary has grown; it has not
    return dict(get_peft_model_state_dict(model, adapter_name=TRAINED, save_embedding_layers=False))


def save(model: Any, folder: Path, base: Base | None) -> None:
    """Writes the adapter, in peft's form, and what it belongs to."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"{_PREFIX}{name}": value.detach().cpu().contiguous()
        for name, value in _weights(model).items()
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config[TRAINED]
    if base is not None:
        config.base_model_name_or_path = base.path
        described = json.dumps(base.__dict__, indent=2) + "\n"
        (folder / BASE_FILE).write_text(described, encoding="utf-8")
    config.save_pretrained(str(folder))


def saved_base(folder: Path) -> Base | None:
    """The model that a saved adapter belongs to; ``None``: this project did not write it."""
    file = folder / BASE_FILE
    return Base(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def base_of(folder: Path, given: str | None, revision: str | None) -> tuple[str, str | None]:
    """The name and revision of the model that a saved adapter belongs to; what the user gives comes first.

    Raises:
        ValueError: the adapter does not name it, or names a folder, which is not opened on its word, or a
            revision that cannot be one.
    """
    base = saved_base(folder)
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    path = base.path if base is not None else config.get("base_model_name_or_path")
    own = base.revision if base is not None else config.get("revision")
    if own and revision is None and given in (None, path) and "/" in str(path):
        if not _REVISION.fullmatch(str(own)):
            raise ValueError(
                f"The adapter {folder} names {own!r} as its model's revision, which cannot be one: give "
                "the right one as model.revision=REVISION."
            )
        revision = None if Path(str(path)).exists() else str(own)
    if given is not None:
        return given, revision
    if not path:
        raise ValueError(
            f"The adapter {folder} does not name the model that it belongs to: give it as "
            "model.lora.base=MODEL."
        )
    if not _NAME.fullmatch(str(path)) or Path(path).exists():
        raise ValueError(
            f"The adapter {folder} belongs to the model in {path!r}, and no folder is opened because a file "
            f"names it. If it is right, give it yourself: model.lora.base={shlex.quote(str(path))}"
        )
    return str(path), revision


def add_reference(model: Any) -> None:
    """Puts a frozen copy of the adapter beside it, unless the adapter still changes nothing."""
    if REFERENCE in model.peft_config:
        model.delete_adapter(REFERENCE)
    if all((weight == 0).all() for weight in _added_at_first(model)):
        return
    config = model.peft_config[TRAINED]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        model.add_adapter(copy.deepcopy(config), REFERENCE)
    _widen(model)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            if f".{REFERENCE}" in name:
                weight.copy_(weights[name.replace(f".{REFERENCE}", f".{TRAINED}")])
    model.set_adapter(TRAINED)


@contextmanager
def reference_active(model: Any) -> Iterator[None]:
    """Makes the model the reference within the block."""
    if REFERENCE in model.peft_config:
        model.set_adapter(REFERENCE)
    else:
        model.disable_adapters()
    try:
        yield
    finally:
        # both make the trained adapter's weights trainable again
        model.enable_adapters()
        model.set_adapter(TRAINED)


def _added_at_first(model: Any) -> Iterator[Tensor]:
    """The factors of the trained adapter that are 0 while it changes nothing: A of embeddings, else B."""
    for name, weight in model.named_parameters():
        if f".lora_embedding_A.{TRAINED}" in name or f".lora_B.{TRAINED}" in name:
            yield weight


def _widen(model: Any) -> None:
    """Adapters are kept in float32 whatever the model's precision: they are small, and take small steps."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name and parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()
