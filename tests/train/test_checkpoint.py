"""Checkpoints: whole or not at all, and only for the model they are of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from programs import said
from small_policies import word_policy

from paw_train.policies.checkpoints import find_checkpoint, remove_checkpoint
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint, share_checkpoint
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.policies.local.policy import LocalPolicy


def _policy(hidden: int = 16, seed: int = 0) -> LocalPolicy:
    return word_policy(["red green blue"], seed, hidden=hidden)


def test_weights_and_state_come_back_exactly(tmp_path: Path) -> None:
    written, read = _policy(seed=1), _policy(seed=2)
    save_checkpoint(tmp_path / "c", written, {"update": 3, "rng": {"a": 2**70}})
    save_checkpoint(tmp_path / "c", written, {"update": 4, "rng": {"a": 2**70}})
    state = load_checkpoint(tmp_path / "c", read)
    assert (state["update"], state["rng"]) == (4, {"a": 2**70})
    for a, b in zip(written.model.parameters(), read.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_two_that_share_leave_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = _policy(seed=1), _policy(seed=2)
    save = slow.save

    def overtaken(folder: Path) -> None:
        save(folder)
        share_checkpoint(tmp_path / "c", fast, {"update": 0})

    monkeypatch.setattr(slow, "save", overtaken)
    share_checkpoint(tmp_path / "c", slow, {"update": 0})
    read = _policy()
    load_checkpoint(tmp_path / "c", read)
    for a, b in zip(fast.model.parameters(), read.model.parameters(), strict=True):
        assert torch.equal(a, b)  # the first that was whole stays
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_state_of_a_gpu_is_read_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    save_checkpoint(tmp_path / "c", _policy(), {"moments": torch.ones(3)})
    state = load_checkpoint(tmp_path / "c", _policy())
    assert state["moments"].tolist() == [1.0, 1.0, 1.0]


def test_what_is_no_checkpoint_of_this_model_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", _policy(hidden=16), {})
    with pytest.raises(ValueError, match="of another model"):
        load_checkpoint(tmp_path / "c", _policy(hidden=32))
    torch.save({"signature": "x"}, tmp_path / "c" / "state.pt")  # without hashes
    with pytest.raises(ValueError, match="holds no training state"):
        load_checkpoint(tmp_path / "c", _policy())


def test_a_checkpoint_is_removed_with_what_a_kill_left_of_it(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "c") is None
    for name in ("c", "c.old", "c.new"):
        (tmp_path / name).mkdir()
    for _ in range(2):  # what is not there is no error
        remove_checkpoint(tmp_path / "c")
        assert list(tmp_path.iterdir()) == []


def test_all_is_on_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = set()

    def sync(file: int) -> None:
        assert not (tmp_path / "c.new" / "state.pt").exists()
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", sync)
    save_checkpoint(tmp_path / "c", _policy(), {"update": 1})
    named = [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert {path.stat().st_ino for path in named} == synced


CHILD = """
import os, signal, sys
from pathlib import Path
import torch
from programs import said
from small_policies import word_policy
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint

torch.set_num_threads(1)
policy, folder = word_policy(["red green blue"]), Path(sys.argv[1])

def save(place, update, calls):
    # in a process that kills itself before a call that renames or removes
    if os.fork() == 0:
        left = calls
        def before(real):
            def call(*arguments, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)
            return call
        # removing a folder is many calls: it may be cut in its middle
        os.replace, os.unlink, os.rmdir = before(os.replace), before(os.unlink), before(os.rmdir)
        save_checkpoint(place, policy, {"update": update})
        os._exit(0)
    return os.WIFSIGNALED(os.wait()[1])

cases = 0
for first in range(99):
    for second in range(first % 9, 99, 9):
        place = folder / f"{first}-{second}" / "c"
        save_checkpoint(place, policy, {"update": 1})
        killed = save(place, 2, first)
        again = save(place, 3, second)
        assert load_checkpoint(find_checkpoint(place), policy)["update"] >= 1, (first, second)
        cases += 1
        if not again:
            assert list(place.parent.iterdir()) == [place]
            break
    if not killed:
        break
print(cases)
"""


@pytest.mark.slow
def test_two_kills_at_any_moments_leave_a_checkpoint(tmp_path: Path) -> None:
    support = Path(__file__).parents[1] / "support"
    assert int(said("-c", CHILD, tmp_path, path=support).split()[-1]) > 30


@pytest.mark.parametrize(
    ("name", "reason"),
    [("state.pt", r"cannot be read \(wrong checksum"), ("model/model.safetensors", "is damaged"),
     ("model/config.json", "is damaged")],
)  # fmt: skip
def test_flipped_bits_are_found_on_resuming(tmp_path: Path, name: str, reason: str) -> None:
    save_checkpoint(tmp_path / "c", _policy(), {"moments": torch.rand(4096)})
    file = tmp_path / "c" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name} {reason}.*--fresh"):
        load_checkpoint(tmp_path / "c", _policy())


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    policy = _policy()
    save_checkpoint(tmp_path / "c", policy, {"update": 1})
    critic = {"critic": {"masters": [torch.ones(2), torch.tensor([1.0, float("inf")])]}}
    with pytest.raises(TrainingDivergedError, match=r"critic\.masters\.1 are not finite"):
        save_checkpoint(tmp_path / "c", policy, critic)
    with torch.no_grad():
        next(iter(policy.model.parameters()))[0] = float("nan")
    for save in (save_checkpoint, share_checkpoint):
        with pytest.raises(TrainingDivergedError, match=r"embed_tokens\.weight are not finite"):
            save(tmp_path / ("c" if save is save_checkpoint else "shared"), policy, {"update": 2})
    full = _policy()
    full.save = lambda folder: folder.mkdir(parents=True) or [][0]  # type: ignore[method-assign]
    with pytest.raises(IndexError):
        save_checkpoint(tmp_path / "c", full, {"update": 2})
    assert load_checkpoint(tmp_path / "c", _policy())["update"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
