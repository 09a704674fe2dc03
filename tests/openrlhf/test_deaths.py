"""Which errors are deaths, when a run starts again, and what it waits for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paw_train.settings import Settings, load_settings
from paw_train.training.openrlhf import launch
from paw_train.training.openrlhf.episode_runner import is_death
from paw_train.training.openrlhf.run_records import restarts

CREATION = "The actor died because of an error raised in its creation task"


class ActorDiedError(Exception):
    """Named as Ray's."""


class RayTaskError(Exception):
    """Named as Ray's."""


@pytest.mark.parametrize(
    ("error", "death"),
    [
        (ActorDiedError("gone"), True),
        (RayTaskError("in task\n  ...\nvllm.EngineDeadError: EngineCore"), True),
        (RayTaskError("in task\nStaleWeightsError: After update 3"), False),
        (ValueError("EngineDeadError: quoted"), False),
        (RayTaskError(f"in task\nActorDiedError: {CREATION}, ray::"), False),
    ],
)
def test_only_a_death_is_one(error: Exception, death: bool) -> None:
    assert is_death(error) is death


def _fails(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[Exception]:
    left = list(errors)

    def once(settings: Settings, idle: Any) -> None:
        if left:
            raise left.pop(0)

    monkeypatch.setattr(launch, "_run_once", once)
    return left


def test_a_run_goes_on_after_a_death_as_often_as_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings("smoke", ["engine=openrlhf", "openrlhf.restarts=2"])
    _fails(monkeypatch, ActorDiedError("a"), ActorDiedError("b"))
    launch._run(settings, tmp_path)
    assert restarts(tmp_path) == 2
    left = _fails(monkeypatch, *(ActorDiedError(c) for c in "abcd"))
    with pytest.raises(ActorDiedError, match="c"):
        launch._run(settings, tmp_path)
    assert len(left) == 1
    assert restarts(tmp_path) == 4


def test_a_constructor_that_raises_ends_the_run_at_once_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings("smoke", ["engine=openrlhf"])
    error = ActorDiedError(f"{CREATION}, ray::__init__()\nImportError: libcudart")
    left = _fails(monkeypatch, *[error] * 4)
    with pytest.raises(ActorDiedError, match="ImportError: libcudart"):
        launch._run(settings, tmp_path)
    assert len(left) == 3
    assert restarts(tmp_path) == 0


def _uses(monkeypatch: pytest.MonkeyPatch, *looks: list[float]) -> list[list[float]]:
    """GPU memory in use at each look at the one machine; the last look stays so."""
    left = list(looks)

    def look(call: Any) -> dict[str, Any]:
        return {"node": left.pop(0) if len(left) > 1 else left[0]}

    monkeypatch.setattr(launch, "on_machines", look)
    monkeypatch.setattr(launch, "LOOK_EVERY", 0.001)
    return left


def test_a_restart_waits_until_the_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    left = _uses(monkeypatch, [70.0, 0.5], [40.0, 0.5], [1.0, 0.5])
    launch.wait_for_memory({"node": [0.5, 0.5]})
    assert left == [[1.0, 0.5]]


def test_memory_that_others_hold_is_waited_for_in_vain_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _uses(monkeypatch, [0.5, 30.5])
    monkeypatch.setattr(launch, "LONGEST_WAIT", 0.01)
    launch.wait_for_memory({"node": [0.5, 0.5]})
    assert "30.0 GiB of GPU 1 on node" in capsys.readouterr().out


def test_memory_is_looked_at_before_the_run_and_waited_for_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines are asked for their own memory, too: this one's says nothing of it."""
    looked: list[Any] = []
    memory = {launch.machine_memory: 100.0, launch.gpu_memory_used: [0.5]}
    errors = [ActorDiedError("gone")]

    def program(name: str, run_name: str) -> None:
        if errors:
            raise errors.pop()

    stubs = {
        "on_machines": lambda call: {"a": memory[call], "b": memory[call]},
        "_require_fit": lambda settings, host: looked.append(host),
        "wait_for_memory": looked.append,
        "start_ray": lambda settings: None,
        "put_in_place": lambda: None,
        "runpy": SimpleNamespace(run_module=program),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(launch, name, stub)
    ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    settings = load_settings("alfworld_qwen2.5-1.5b_grpo_paw", ["engine=openrlhf"])
    launch._run(settings, tmp_path)
    assert looked == [100.0, {"a": [0.5], "b": [0.5]}]


@pytest.mark.slow
def test_ray_asks_every_machine_and_tells_a_constructor_that_raised_from_a_dead_process() -> None:
    if not os.environ.get("PAW_CLUSTER_TESTS"):
        pytest.skip("Ray is started: make test-openrlhf")
    import ray

    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, object_store_memory=100 * 2**20)

    class Dies:
        def __init__(self, raises: bool) -> None:
            if raises:
                raise ImportError("libcudart")
            os._exit(1)

        def ask(self) -> None:
            """Never runs."""

    def asked(raises: bool) -> None:
        ray.get(ray.remote(num_cpus=0)(Dies).remote(raises).ask.remote())

    task = ray.remote(num_cpus=0)(asked)
    for raises in (True, False):
        for ask in (asked, lambda raises: ray.get(task.remote(raises))):  # here, and in a task
            with pytest.raises(ray.exceptions.RayError) as error:
                ask(raises)
            assert is_death(error.value) is not raises
            assert ("libcudart" in str(error.value)) is raises

    def process() -> int:
        return os.getpid()

    [found] = launch.on_machines(process).values()
    assert found != process()
    assert launch.on_machines(launch.gpu_memory_used).keys() == {ray.util.get_node_ip_address()}
    ray.shutdown()
