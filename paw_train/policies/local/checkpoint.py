"""Checkpoints that resume to the last digit: written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from paw_gym.internals.files import new_file, new_folder, sha256_of
from paw_train.policies.checkpoints import NEW, OLD, STATE_FILE, find_checkpoint
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.policies.local.loading import model_signature, not_finite
from paw_train.policies.local.policy import LocalPolicy


def save_checkpoint(folder: Path, policy: LocalPolicy, state: Mapping[str, Any]) -> None:
    """Writes model, tokenizer and training state to ``folder``, replacing what is there.

    At any moment one whole checkpoint is at ``folder`` or beside it, where ``find_checkpoint`` finds it,
    even when the process that goes on after a kill is killed itself.
    """
    fresh, old = (folder.with_name(folder.name + suffix) for suffix in (NEW, OLD))
    found = find_checkpoint(folder)
    if found is not None and found != folder:
        # a kill left the only whole one beside its place: nothing may be removed before it is back
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(found, folder)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        _write(fresh, policy, state)
    except BaseException:
        # on a full disk, half of a checkpoint would keep the next one from fitting
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)


def share_checkpoint(folder: Path, policy: LocalPolicy, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint that other processes may be writing too; the first one stays."""
    with new_folder(folder, is_done=lambda there: find_checkpoint(there) is not None) as fresh:
        _write(fresh, policy, state)


def _write(folder: Path, policy: LocalPolicy, state: Mapping[str, Any]) -> None:
    broken = not_finite([*policy.model.named_parameters(), *_tensors(state)])
    if broken is not None:
        raise TrainingDivergedError(
            f"The numbers of {broken} are not finite, so {folder} is not written."
        )
    policy.save(folder / "model")
    held = {"signature": model_signature(policy.model), "sha256": _hashes(folder)}
    with new_file(folder / STATE_FILE) as scratch:  # the name, given last, says that all is there
        with scratch.open("wb") as file:
            torch.save({**state, **held}, file)
        _sync(folder)


def _tensors(state: Any, where: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield where, state
    held = state if isinstance(state, Mapping) else {}
    held = dict(enumerate(state)) if isinstance(state, list | tuple) else held
    for key, value in held.items():
        yield from _tensors(value, f"{where}.{key}".strip("."))


def load_checkpoint(folder: Path, policy: LocalPolicy) -> dict[str, Any]:
    """Loads weights and returns the training state; raises ``ValueError`` if it is damaged or another's."""
    state = _read_state(folder / STATE_FILE)
    here = model_signature(policy.model)
    if state["signature"] != here:
        raise ValueError(
            f"The checkpoint {folder} is of another model (signature {state['signature']}, this run's "
            f"model has {here}): its settings or its base model differ. Resume with the settings it was "
            "written with, or start a new run under another name."
        )
    found = _hashes(folder)
    for name, digest in state["sha256"].items():
        if found.get(name) != digest:
            raise ValueError(
                f"{folder / name} is damaged: it is not the file that was saved (SHA-256 differs). "
                + _REMEDY
            )
    policy.load_weights(folder / "model")
    return state


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in (folder / "model").rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


_REMEDY = "Put a copy of the checkpoint in its place, or start over with --fresh."


def _read_state(path: Path) -> dict[str, Any]:
    """Tensors (on the CPU), numbers, texts and containers of them: code in the file is refused, not run."""
    try:
        with ZipFile(path) as file:
            if (bad := file.testzip()) is not None:  # torch does not compare checksums
                raise BadZipFile(f"wrong checksum of {bad}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises all kinds of errors for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"The training state {path} cannot be read ({reason}). {_REMEDY}"
        ) from error
    if not isinstance(state, dict) or not {"signature", "sha256"} <= state.keys():
        raise ValueError(f"{path} holds no training state.")
    return state


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
