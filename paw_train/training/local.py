"""The training loop in one process: warm start, rollouts, GRPO with PaW, checkpoints, evaluation.

Read ``Run.execute`` from top to bottom for the whole of it. A run lives in one folder and can be
killed at any moment: called again, it goes on from its last checkpoint and computes what it would
have computed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paw_gym.internals.files import append_jsonl, naming_full_disk, new_folder, write_json
from paw_gym.internals.locks import only_process, require_idle
from paw_gym.internals.naming import did_you_mean
from paw_gym.transition import write_jsonl
from paw_train.algorithms.critic import Critic
from paw_train.algorithms.estimator import advantage_estimator
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater, update_seed
from paw_train.evaluation import evaluate_members, evaluate_to_folder
from paw_train.policies.checkpoints import cut_logs, find_checkpoint, note_event, remove_checkpoint
from paw_train.policies.factory import rollout_policy
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint, share_checkpoint
from paw_train.policies.local.loading import load_tokenizer
from paw_train.policies.local.policy import LocalPolicy, Reference
from paw_train.policies.local.scratch import scratch_model, scratch_tokenizer
from paw_train.reporting.compare.runs import is_finished, updates_done
from paw_train.reporting.run.alarms import loss_name
from paw_train.reporting.run.verdict import selected_by
from paw_train.reporting.terminal import RunDisplay
from paw_train.reporting.tracking import Tracking
from paw_train.rollouts.observation_filter import leave_out
from paw_train.rollouts.rollout import sampled_tokens
from paw_train.rollouts.rows import with_placebo
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import MAY_CHANGE, WITHOUT_EFFECT, CloningSettings, Settings, load_settings
from paw_train.settings.base import differences
from paw_train.settings.run import read_recorded, shared_evaluation, shared_warm_start
from paw_train.training.cloning import clone, mixed_expert_rows
from paw_train.training.environments import (
    TrainingEnvironments,
    max_returns,
    require_room_for_tasks,
)
from paw_train.training.language import language_texts
from paw_train.training.memory import memory_of, shape_of
from paw_train.training.phases import GIB, beside_vllm
from paw_train.training.plan import machine_memory, require_fit
from paw_train.training.preparation import checked_settings
from paw_train.training.recording import record
from paw_train.world_model_learning.stages import WorldModelStages

if TYPE_CHECKING:
    from paw_train.policies.vllm import FollowingVLLM

_RECORDED_GROUPS = 2
"""of an update whose episodes are recorded"""
_KEPT_EPISODES = 6
"""of the evaluations before and after RL, for the report"""


def train_from_recipe(
    recipe: str, overrides: Sequence[str] = (), fresh: bool = False, quiet: bool = False
) -> Path:
    """Trains by a recipe and returns the run's folder.

    An unfinished run of the same name and settings is resumed; a finished one is left as it is, or goes
    on if ``updates`` has grown. Some settings may change (``settings.MAY_CHANGE``).
    """
    return train(load_settings(recipe, overrides), fresh, quiet)


def train(settings: Settings, fresh: bool = False, quiet: bool = False) -> Path:
    """Trains by given settings; see ``train_from_recipe``.

    The folder is claimed after everything that can be wrong with the settings has been checked, and
    given up again if the run fails before it leaves anything there.
    """
    display = RunDisplay(quiet)
    if settings.note is not None:
        display.say(settings.note)
    settings = local_settings(settings, display.say)
    folder = Path(settings.out) / settings.name
    require_idle(folder)
    with set_aside(folder, fresh):
        require_own_folder(folder, settings)
        run = Run(settings, folder, display)
        if not folder.exists():
            require_room_for_tasks(settings, run.policy.chat)
        claim_folder(folder, settings)
    with only_process(folder):
        try:
            with naming_full_disk(folder):
                return run.execute()
        except BaseException:
            if [path.name for path in folder.iterdir()] == ["config.json"]:
                shutil.rmtree(folder)
            raise


def local_settings(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings as this engine will use them, after all checks that can be made before a run begins."""
    memory = memory_of(chosen_device(settings.model.device))
    settings = checked_settings(settings, report).replace(threads=settings.cpu_threads)
    if memory is not None:
        require_fit(settings, memory, machine_memory())
    return settings


def chosen_device(name: str) -> torch.device:
    """The device that ``model.device`` names."""
    valid = ("auto", "cpu", "cuda")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"Unknown device {name!r}. {did_you_mean(name, valid)}")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            "model.device=cuda, but PyTorch sees no CUDA device here; use cpu or auto."
        )
    return torch.device(name)


@contextmanager
def set_aside(folder: Path, wanted: bool) -> Iterator[None]:
    """Takes a run out of the way; it is deleted once another is in its place, and otherwise put back."""
    if not wanted or not folder.exists():
        yield
        return
    aside = folder.with_name(f".{folder.name}.before")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    try:
        yield
    finally:
        if folder.exists():
            if aside.is_symlink():
                aside.unlink()
            else:
                shutil.rmtree(aside)
        else:
            aside.rename(folder)


def claim_folder(folder: Path, settings: Settings) -> None:
    """Makes the run's folder and records the settings there, unless it is another run's.

    Settings that have changed since, and have an effect, are noted in ``events.jsonl``.
    """
    changed = require_own_folder(folder, settings)
    if is_finished(folder):
        if "updates" not in changed:
            return
        # it goes on: what it ended with is made again
        for last in ("eval_after.json", "episodes_after.jsonl", "world_model/trained.json"):
            (folder / last).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for until in filter(None, map(MAY_CHANGE.get, changed)):
        remove_checkpoint(folder / "checkpoints" / f"{until}-latest")
    if changed:
        note_event(folder, "settings changed", changed=changed)
    write_json(folder / "config.json", json.loads(json.dumps(settings.to_dict())))


def require_own_folder(folder: Path, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """The settings (dotted) that have changed and have an effect, each before and now."""
    in_the_way = next((p for p in (folder, *folder.parents) if p.exists() and not p.is_dir()), None)
    if in_the_way is not None:
        raise NotADirectoryError(f"{folder} cannot be made: {in_the_way} is a file (out, name).")
    config = folder / "config.json"
    if not config.exists():
        return {}
    changed = {
        key: values
        for key, values in differences(read_recorded(config), settings.to_dict()).items()
        if not any(f"{key}.".startswith(f"{free}.") for free in WITHOUT_EFFECT)
    }
    for key, (before, now) in changed.items():
        if (reason := _refusal(key, before, now, folder, settings.engine)) is not None:
            raise ValueError(
                f"{folder} holds a run with other settings (first difference: {key}{reason}). "
                "Give this one another name (name=...), or start over with --fresh."
            )
    fixed = next((key for key in changed if key != "threads"), None)
    if fixed is not None and "updates" not in changed and is_finished(folder):
        raise ValueError(
            f"{folder} is finished, and {fixed} was {changed[fixed][0]} there. Give this run another "
            "name (name=...), let it go on with larger updates, or start over with --fresh."
        )
    return changed


def _refusal(key: str, before: Any, now: Any, folder: Path, engine: str) -> str | None:
    """Why a setting may not change, for a parenthesis; ``None``: it may."""
    if key not in MAY_CHANGE:
        return ""
    if engine == "openrlhf" and key in ("updates", "algorithm.critic.lr"):
        return ", which may change with engine=local only"
    if key == "updates" and now < before:
        return f", which was {before} and may only grow"
    until = MAY_CHANGE[key]
    if until is not None and find_checkpoint(folder / "checkpoints" / until) is not None:
        return f", which may change until checkpoints/{until} is made"
    return None


class Run:
    """One training run in one folder."""

    def __init__(self, settings: Settings, folder: Path, display: RunDisplay) -> None:
        self.settings, self.folder, self.display = settings, folder, display
        self.interrupted = False
        torch.set_num_threads(settings.cpu_threads)
        self.device = chosen_device(settings.model.device)
        self.policy = self._policy()
        self.policy.require_positions(settings.rollout.max_context_tokens)
        self._engine: LocalPolicy | FollowingVLLM | None = None
        self.max_returns = max_returns(settings)
        recorded = json.loads(json.dumps(settings.to_dict()))
        self.tracking = Tracking(folder, settings.name, settings.tracking, recorded)

    # --- the whole run, top to bottom ---------------------------------------------------------

    def execute(self) -> Path:
        """Does what is left of the run and returns its folder."""
        if is_finished(self.folder):
            self.display.say(
                f"{self.folder} is finished; larger updates let it go on, --fresh starts it over."
            )
            return self.folder
        started = time.perf_counter()
        with _graceful(self), self.tracking:
            finished = self._warm_start()
            if finished:
                finished = self._learn()
                self._report()
            if finished:
                self.tracking.finish()
        if not finished:
            self.display.say(
                f"Stopped and saved; the same command goes on from here. ({self.folder})"
            )
        self.display.say(f"{time.perf_counter() - started:.0f} s in this process.")
        return self.folder

    def _learn(self) -> bool:
        """World-model learning, RL, and the evaluations around it; False if it was interrupted."""
        checkpoints = self.folder / "checkpoints"
        # each start comes past here: a kill may have left one beside the stage's end
        remove_checkpoint(checkpoints / "warm-latest")
        given = (self.settings, self.folder, self.policy, self.display)
        stages = WorldModelStages(*given, lambda: self.interrupted, self._imitate)
        if not stages.learn():
            return False
        for stage in ("world_model", "imitation"):
            remove_checkpoint(checkpoints / f"{stage}-latest")
        self._evaluate("before")
        if not self._reinforce():
            return False
        best = find_checkpoint(checkpoints / "best")
        if best is not None:
            load_checkpoint(best, self.policy)
        elif self.settings.evaluation.every and self.settings.updates:
            self.display.say("No checkpoints/best: the last policy is evaluated.")
        stages.measure("trained")
        self._evaluate("after")
        return True

    # --- policy --------------------------------------------------------------------------------

    def _policy(self) -> LocalPolicy:
        model = self.settings.model
        if model.path is not None:
            return LocalPolicy.load(
                model.path,
                str(self.device),
                model.dtype,
                attention=model.attention,
                adapter=model.lora,
                gradient_checkpointing=model.gradient_checkpointing,
                seed=self.settings.seed,
                revision=model.revision,
            )
        warm = self._made_before()
        if warm is not None:
            tokenizer = load_tokenizer(warm / "model")
        else:
            tokenizer = scratch_tokenizer(
                model.scratch, language_texts(self.settings, self.display)
            )
        network = scratch_model(model.scratch, len(tokenizer), self.settings.seed)
        return LocalPolicy(network.to(self.device), tokenizer)

    # --- warm start ------------------------------------------------------------------------------

    def _warm_start(self) -> bool:
        """Clones the expert, once; False if it was interrupted before its last step.

        Afterwards the policy is the one that RL starts from and KL is measured against.
        """
        settings, folder = self.settings.cloning, self.folder / "checkpoints" / "warm"
        saved = self._made_before()
        if saved is not None:
            load_checkpoint(saved, self.policy)
            if saved != find_checkpoint(folder):
                save_checkpoint(folder, self.policy, {"update": 0})
                self.display.say(f"Warm start taken from {saved}.")
            return True
        if settings.episodes and not self._clone("warm-latest", "warmstart.jsonl", settings, []):
            return False
        save_checkpoint(folder, self.policy, {"update": 0})
        if (shared := shared_warm_start(self.settings)) is not None:
            share_checkpoint(shared, self.policy, {"update": 0})
        return True

    def _imitate(self, more: list[TokenRow]) -> bool:
        """The imitation that ends early experience; False when it was interrupted before its last step."""
        steps = self.settings.world_model_learning.early.imitation_steps
        if not steps:
            return True
        own = self.settings.cloning.replace(steps=steps)
        return self._clone("imitation-latest", "imitation.jsonl", own, more)

    def _clone(self, latest: str, log: str, own: CloningSettings, more: list[TokenRow]) -> bool:
        """Learns the expert's episodes (``cloning.episodes``) and other rows beside them."""
        rows = list(more)
        if own.episodes:
            with self.display.task("expert episodes", own.episodes) as advance:
                rows += mixed_expert_rows(self.settings, self.policy.chat, advance)
        with self.display.task("cloning the expert", own.steps) as advance:
            return clone(
                self.policy, rows, own, self.settings.seed, self.folder / log,
                lambda step, _, loss: advance(step, f"loss {loss:.3f}"),
                self.folder / "checkpoints" / latest, lambda: self.interrupted, self.display.say,
            )  # fmt: skip

    def _made_before(self) -> Path | None:
        """The checkpoint of this run's warm start: its own, or one that an equal run shared."""
        own = find_checkpoint(self.folder / "checkpoints" / "warm")
        shared = shared_warm_start(self.settings)
        return own or (find_checkpoint(shared) if shared else None)

    def _critic(self) -> Critic | None:
        a = self.settings.algorithm
        if not advantage_estimator(a.name).needs_critic:
            return None
        own = self.settings.optimizer
        return Critic(self.policy, a.critic, a.level, own.micro_batch_tokens, own.max_grad_norm)

    def _reference(self) -> Reference | None:
        """The policy of the warm start; call it while the policy is still that one."""
        if self.settings.objective.kl_coef == 0:
            return None
        return self.policy.reference(self.settings.model.reference_offload)

    # --- reinforcement learning ------------------------------------------------------------------

    def _reinforce(self) -> bool:
        """The RL updates that are left; False when it was interrupted before the last."""
        s = self.settings
        given = (s.optimizer, s.objective, s.world_model, s.rollout.temperature, s.updates)
        updater = Updater(self.policy, self._reference(), *given, self._critic())
        environments = TrainingEnvironments(s)
        start = self._resume(updater, environments)
        earlier = _records(self.folder / "metrics.jsonl")
        loss = loss_name(s.to_dict())
        with self.display.updates(s.updates, earlier, loss) as show:
            if s.evaluation.every and s.updates and not _records(self.folder / "validation.jsonl"):
                self._validate(0, updater, environments)
            for update in range(start, s.updates):
                metrics = self._update(update, updater, environments, show)
                if s.evaluation.every and (
                    (update + 1) % s.evaluation.every == 0 or update + 1 == s.updates
                ):
                    metrics["validation"] = self._validate(update + 1, updater, environments)
                append_jsonl(self.folder / "metrics.jsonl", metrics)
                self.tracking.follow()
                show(metrics)
                if update + 1 == s.updates:
                    for step in updater.steps:
                        step.require_good()
                last = update + 1 == s.updates or self.interrupted
                # after a validation too: "best" must not outlive the updates that led to it
                if last or "validation" in metrics or (update + 1) % s.checkpoint_every == 0:
                    self._save("latest", update + 1, updater, environments)
                if self.interrupted and update + 1 < s.updates:
                    return False
        environments.close()
        return True

    def _update(
        self, update: int, updater: Updater, environments: TrainingEnvironments, show: Any
    ) -> dict[str, Any]:
        s = self.settings
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(update_seed(s.seed, update))
        environments.set_progress(update / s.updates)
        sampled, kept = environments.sample(
            self._sampler(), update, generator, lambda run, n: show.rollout(update, run, n)
        )
        self._rest()
        rolled = time.perf_counter()
        show.learning(update)
        pool = collect(leave_out(kept, self.policy.tokenizer, s.world_model))
        given = (s.algorithm, s.objective, s.world_model, self.max_returns)
        prepared = prepare(pool, *given, updater.signals(pool), self.policy.chat.ask)
        if s.record.every and update % s.record.every == 0:
            kept_groups = environments.recorded(sampled, _RECORDED_GROUPS)
            record(self.folder, update + 1, kept_groups, pool, prepared, self.policy, s)
        seed = update_seed(s.seed, update)
        rows = with_placebo(prepared.rows, seed) if s.world_model.placebo else prepared.rows
        metrics: dict[str, Any] = updater.step(rows, update, seed)
        updater.release()
        found = {**environments.metrics(sampled), **prepared.metrics, **metrics}
        return {
            "update": update + 1,
            # those of a critic that diverged may not be finite
            **{name: value for name, value in found.items() if math.isfinite(value)},
            "tokens": sum(len(row.ids) for row in prepared.rows),
            "sampled_tokens": sampled_tokens(sampled),
            "transitions": len(prepared.entropy),
            "seconds_rollout": rolled - started,
            "seconds_train": time.perf_counter() - rolled,
            "peak_memory_mb": _peak_memory(self.device) / 2**20,
            "time": time.time(),
        }

    def _sampler(self) -> LocalPolicy | FollowingVLLM:
        """The sampler of all episodes: the policy, or an engine that follows its weights."""
        if self._engine is None:
            rollout = self.settings.rollout
            self._engine = rollout_policy(
                self.policy, rollout.engine, rollout.vllm, self._to_come()
            )
        return self._engine

    def _to_come(self) -> int:
        """Bytes of the GPU that training takes beside a vLLM engine and does not hold yet."""
        if self.settings.rollout.engine != "vllm" or self.device.type != "cuda":
            return 0
        needed = beside_vllm(self.settings, shape_of(self.policy.model.config.to_dict()))
        torch.cuda.empty_cache()
        return max(0, int(needed * GIB) - torch.cuda.memory_allocated(self.device))

    def _rest(self) -> None:
        """Gives the sampler's memory to training, until it samples again."""
        if self._engine is not None:
            self._engine.rest()

    def _resume(self, updater: Updater, environments: TrainingEnvironments) -> int:
        saved = find_checkpoint(self.folder / "checkpoints" / "latest")
        start = 0
        if saved is not None:
            state = load_checkpoint(saved, self.policy)
            updater.load_state_dict(state["optimizer"])
            environments.load_state_dict(state["pool"])
            start = int(state["update"])
            self.display.say(f"Resuming after update {start}.")
        else:
            latest, done = self.folder / "checkpoints" / "latest", updates_done(self.folder)
            if done > self.settings.checkpoint_every:
                raise ValueError(
                    f"{self.folder} has {done} updates, but the checkpoint {latest} is missing. Put it back, "
                    "or start over with --fresh."
                )
            if done:
                self.display.say(f"No checkpoint yet: {done} updates are computed again.")
        cut_logs(self.folder, ("metrics.jsonl", "validation.jsonl"), start, self.display.say)
        return start

    def _save(
        self, name: str, update: int, updater: Updater, environments: TrainingEnvironments
    ) -> None:
        if any(step.skipped for step in updater.steps):
            self.display.say(f"Not saved after update {update}: its last step was not finite.")
            return
        state = {
            "update": update,
            "optimizer": updater.state_dict(),
            "pool": environments.state_dict(),
            "settings": self.settings.to_dict(),
        }
        save_checkpoint(self.folder / "checkpoints" / name, self.policy, state)

    # --- evaluation --------------------------------------------------------------------------------

    def _validate(self, update: int, updater: Updater, environments: TrainingEnvironments) -> float:
        """Success on the selection panel; the best policy so far is kept.

        The best by success, or by the mean score where the reward is the environment's own. Update 0 is the
        start: what it reaches is recorded to compare with, and is never kept as the best.
        """
        splits = {member.name: member.selection_split for member in self.settings.members}
        tasks = self.settings.evaluation.selection_tasks
        result, _ = evaluate_members(self._sampler(), self.settings, splits, tasks)
        self._rest()
        record = {"update": update, **{k: result[k] for k in ("success_rate", "n", "ci95")}}
        record["score"] = result["score"]["mean"]
        if self.settings.mixed:
            rates = {name: part["success_rate"] for name, part in result["by_type"].items()}
            record |= {f"success_rate/{name}": rate for name, rate in rates.items()}
        log = self.folder / "validation.jsonl"
        by = selected_by(self.settings.to_dict()["env"])
        earlier = [row[by] for row in _records(log) if row["update"]]
        append_jsonl(log, record)
        if update and record[by] >= max(earlier, default=0.0):
            self._save("best", update, updater, environments)
        return float(record["success_rate"])

    def _evaluate(self, when: str) -> None:
        e = self.settings.evaluation
        path = self.folder / f"eval_{when}.json"
        if path.exists() or e.tasks == 0:
            return
        shared = shared_evaluation(self.settings) if when == "before" else None
        episodes_path = self.folder / f"episodes_{when}.jsonl"
        if shared is not None and (shared / "result.json").exists():
            shutil.copyfile(shared / "episodes.jsonl", episodes_path)
            found = json.loads((shared / "result.json").read_text(encoding="utf-8"))
            for part in (found, *found.get("by_environment", {}).values()):
                part["model"] = self.settings.name
            write_json(path, found)
            return
        members = self.settings.members
        count = e.tasks * e.plays * len(members)
        splits = {member.name: member.split for member in members}
        with self.display.task(f"evaluating {when} RL", count) as advance:
            result, episodes = evaluate_members(
                self._sampler(), self.settings, splits, e.tasks, e.plays, advance
            )
        self._rest()
        each = -(-_KEPT_EPISODES // len(members))
        kept = [episode for played in episodes for episode in played[:each]]
        write_jsonl(episodes_path, kept)
        write_json(path, result)
        if shared is not None:
            # runs of equal settings may end their evaluations at the same moment
            with new_folder(shared, lambda there: (there / "result.json").exists()) as fresh:
                evaluate_to_folder(fresh, result, kept)

    def _report(self) -> None:
        from paw_train.reporting.run.page import write_report

        self.display.summary(self.folder)
        self.display.say(f"Report: {write_report(self.folder)}")


def _records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that this engine wrote; none if there is no file yet."""
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


def _peak_memory(device: torch.device) -> float:
    """Bytes: the most that the GPU's allocator held, or this process had resident, so far."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


@contextmanager
def _graceful(run: Run) -> Iterator[None]:
    """Turns the first Ctrl-C (or SIGTERM) into a request to stop after the current update."""

    def ask(number: int, frame: Any) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupted = True
        run.display.say("Stopping after the current step (again: at once) ...")

    previous = {}
    with suppress(ValueError):  # not in the main thread: nothing to catch there
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
