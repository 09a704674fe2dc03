"""The training loop in one process: warm start, rollouts, GRPO with PaW, checkpoints, evaluation.

Read ``Run.execute`` from top to bottom for the whole of it. A run lives in one folder and can be
killed at any moment: called again, it goes on from its last checkpoint and computes what it would
have computed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paw_gym.files import append_jsonl, new_folder, truncate_jsonl, write_json
from paw_gym.locks import only_process, require_idle
from paw_gym.transition import write_jsonl
from paw_train.algorithms.critic import Critic
from paw_train.algorithms.estimators import advantage_estimator
from paw_train.algorithms.experience import collect, prepare
from paw_train.algorithms.update import Updater, update_seed
from paw_train.evaluation import evaluate_to_folder
from paw_train.evaluation.mixture import evaluate_members
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.policies.factory import rollout_policy
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint, share_checkpoint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.reference import Reference
from paw_train.policies.local.scratch import scratch_model, scratch_tokenizer
from paw_train.reporting.run.alarms import world_model_loss
from paw_train.reporting.terminal import RunDisplay
from paw_train.reporting.tracking.follow import Tracking
from paw_train.rollouts.observation_filter import leave_out
from paw_train.rollouts.rollout import sampled_tokens
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import (
    WITHOUT_EFFECT,
    CloningSettings,
    Settings,
    load_settings,
    with_defaults,
)
from paw_train.settings.sharing import shared_evaluation, shared_warm_start
from paw_train.training.cloning import clone, mixed_expert_rows
from paw_train.training.device import chosen_device, memory_of
from paw_train.training.environments import (
    TrainingEnvironments,
    require_room_for_tasks,
    reward_terms,
)
from paw_train.training.fit import machine_memory, require_fit
from paw_train.training.language import language_texts
from paw_train.training.preparation import prepared
from paw_train.training.recording import record
from paw_train.world_model_learning.stages import WorldModelStages

if TYPE_CHECKING:
    from paw_train.policies.vllm.engine import FollowingVLLM


def train_from_recipe(
    recipe: str, overrides: Sequence[str] = (), fresh: bool = False, quiet: bool = False
) -> Path:
    """Trains by a recipe and returns the run's folder.

    An unfinished run of the same name and settings is resumed; a finished one is left as it is.

    Args:
        recipe: a name from ``recipes/`` or a ``.yaml`` path.
        overrides: ``key=value`` settings.
        fresh: delete a run of the same name first.
        quiet: no progress display.

    Raises:
        ValueError: unknown recipe or setting; a run of this name with other settings is there; or another
            process is working on it.
    """
    return train(load_settings(recipe, overrides), fresh, quiet)


def train(settings: Settings, fresh: bool = False, quiet: bool = False) -> Path:
    """Trains by given settings; see ``train_from_recipe``.

    The folder is claimed after everything that can be wrong with the settings was looked at, and
    given up again when the run fails before it leaves anything there.
    """
    display = RunDisplay(quiet)
    if settings.note is not None:
        display.say(settings.note)
    settings = startable_here(settings, display.say)
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
            return run.execute()
        except BaseException:
            give_up_folder(folder)
            raise


def startable_here(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings as this engine will use them, after all that can be asked before a run begins."""
    memory = memory_of(chosen_device(settings.model.device))
    settings = prepared(settings, report)
    if memory is not None:
        require_fit(settings, memory, machine_memory())
    return settings


@contextmanager
def set_aside(folder: Path, wanted: bool) -> Iterator[None]:
    """Takes a run out of the way; it is deleted once another stands in its place, and else put back."""
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
            shutil.rmtree(aside)
        else:
            aside.rename(folder)


def claim_folder(folder: Path, settings: Settings) -> None:
    """Makes the run's folder and records the settings there, unless it is another run's."""
    require_own_folder(folder, settings)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", json.loads(json.dumps(settings.to_dict())))


def give_up_folder(folder: Path) -> None:
    """Removes a run's folder that holds nothing but its settings."""
    if [path.name for path in folder.iterdir()] == ["config.json"]:
        shutil.rmtree(folder)


def require_own_folder(folder: Path, settings: Settings) -> None:
    """Raises ``ValueError`` for the folder of a run with other settings; names the first that differs."""
    in_the_way = next((p for p in (folder, *folder.parents) if p.exists() and not p.is_dir()), None)
    if in_the_way is not None:
        raise NotADirectoryError(f"{folder} cannot be made: {in_the_way} is a file (out, name).")
    config = folder / "config.json"
    wanted = json.loads(json.dumps(settings.to_dict()))
    if config.exists():
        found = with_defaults(json.loads(config.read_text(encoding="utf-8")))
        changed = [
            key
            for key in _differences(found, wanted)
            if not any(f"{key}.".startswith(f"{free}.") for free in WITHOUT_EFFECT)
        ]
        if changed:
            raise ValueError(
                f"{folder} holds a run with other settings (first difference: {changed[0]}). "
                "Give this one another name (name=...), or start over with --fresh."
            )


def _differences(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(key for key in b if key not in a)]
        return [
            d for k in keys for d in _differences(a.get(k), b.get(k), f"{where}.{k}".strip("."))
        ]
    return [] if a == b else [where]


class Run:
    """One training run in one folder."""

    def __init__(self, settings: Settings, folder: Path, display: RunDisplay) -> None:
        self.settings, self.folder, self.display = settings, folder, display
        self.interrupted = False
        torch.set_num_threads(settings.threads or os.cpu_count() or 1)
        self.device = chosen_device(settings.model.device)
        self.policy = self._policy()
        self._engine: LocalPolicy | FollowingVLLM | None = None
        self.reward_terms = reward_terms(settings)
        self.tracking = Tracking(
            folder,
            settings.name,
            settings.tracking,
            settings.tracking_project,
            json.loads(json.dumps(settings.to_dict())),
        )

    # --- the whole run, top to bottom ---------------------------------------------------------

    def execute(self) -> Path:
        """Does what is left of the run and returns its folder."""
        if (self.folder / "eval_after.json").exists():
            self.display.say(f"{self.folder} is finished; --fresh starts it over.")
            return self.folder
        started = time.perf_counter()
        with _graceful(self), self.tracking:
            warm = self._warm_start()
            if warm is None:
                return self._stopped(started)
            stages = WorldModelStages(
                self.settings,
                self.folder,
                warm,
                self.display,
                lambda: self.interrupted,
                self._imitate,
            )
            finished = stages.learn()
            if finished:
                self._remove("imitation-latest")
                self._evaluate("before", warm)
                finished = self._reinforce(warm)
            if finished:
                best = find_checkpoint(self.folder / "checkpoints" / "best")
                if best is not None:
                    load_checkpoint(best, self.policy)
                stages.measure("trained")
                self._evaluate("after", self.policy)
            self._report()
            if finished:
                self.tracking.finish()
        if not finished:
            return self._stopped(started)
        self.display.say(f"{time.perf_counter() - started:.0f} s in this process.")
        return self.folder

    def _stopped(self, started: float) -> Path:
        self.display.say(f"Stopped and saved; the same command goes on from here. ({self.folder})")
        self.display.say(f"{time.perf_counter() - started:.0f} s in this process.")
        return self.folder

    # --- policy --------------------------------------------------------------------------------

    def _policy(self) -> LocalPolicy:
        from transformers import AutoTokenizer

        model = self.settings.model
        if model.path is not None:
            return LocalPolicy.load(
                model.path,
                str(self.device),
                model.dtype,
                revision=model.revision,
                attention=model.attention,
                adapter=model.lora,
                gradient_checkpointing=model.gradient_checkpointing,
                seed=self.settings.seed,
            )
        warm = self._made_before()
        if warm is not None:
            tokenizer = AutoTokenizer.from_pretrained(warm / "model", trust_remote_code=False)
        else:
            tokenizer = scratch_tokenizer(
                model.scratch, language_texts(self.settings, self.display)
            )
        network = scratch_model(model.scratch, len(tokenizer), self.settings.seed)
        return LocalPolicy(network.to(self.device), tokenizer)

    # --- warm start ------------------------------------------------------------------------------

    def _warm_start(self) -> LocalPolicy | None:
        """Clones the expert (once) and returns the policy that RL starts from and KL is measured to.

        ``None``: it was interrupted before its last step.
        """
        settings, folder = self.settings.cloning, self.folder / "checkpoints" / "warm"
        saved = self._made_before()
        if saved is not None:
            load_checkpoint(saved, self.policy)
            if saved != find_checkpoint(folder):
                save_checkpoint(folder, self.policy, {"update": 0})
                self.display.say(f"Warm start taken from {saved}.")
            return self.policy
        if settings.episodes and not self._clone("warm-latest", "warmstart.jsonl", settings, []):
            return None
        save_checkpoint(folder, self.policy, {"update": 0})
        if (shared := shared_warm_start(self.settings)) is not None:
            share_checkpoint(shared, self.policy, {"update": 0})
        self._remove("warm-latest")
        return self.policy

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
                self.policy,
                rows,
                own,
                self.settings.seed,
                self.folder / log,
                lambda step, _, loss: advance(step, f"loss {loss:.3f}"),
                self.folder / "checkpoints" / latest,
                lambda: self.interrupted,
            )

    def _remove(self, latest: str) -> None:
        """Removes a checkpoint that was only needed to go on."""
        for left in (latest, f"{latest}.old"):
            shutil.rmtree(self.folder / "checkpoints" / left, ignore_errors=True)

    def _made_before(self) -> Path | None:
        """The checkpoint of this run's warm start: its own, or one that an equal run shared."""
        own = find_checkpoint(self.folder / "checkpoints" / "warm")
        shared = shared_warm_start(self.settings)
        return own or (find_checkpoint(shared) if shared else None)

    def _critic(self) -> Critic | None:
        a = self.settings.algorithm
        if not advantage_estimator(a.name).needs_critic:
            return None
        return Critic(self.policy, a.critic, a.level, self.settings.optimizer.micro_batch_tokens)

    def _reference(self) -> Reference | None:
        """The policy of the warm start; call it while that is what the policy is."""
        if self.settings.objective.kl_coef == 0:
            return None
        return self.policy.reference(self.settings.model.reference_offload)

    # --- reinforcement learning ------------------------------------------------------------------

    def _reinforce(self, warm: LocalPolicy) -> bool:
        """The RL updates that are left; False when it was interrupted before the last."""
        s = self.settings
        updater = Updater(
            self.policy,
            self._reference(),
            s.optimizer,
            s.objective,
            s.world_model,
            s.rollout.temperature,
            s.updates,
            self._critic(),
        )
        pool = TrainingEnvironments(s)
        start = self._resume(updater, pool)
        earlier = _records(self.folder / "metrics.jsonl")
        loss = world_model_loss(s.to_dict())
        with self.display.updates(s.updates, earlier, loss) as show:
            for update in range(start, s.updates):
                metrics = self._update(update, updater, pool, show)
                if s.evaluation.every and (
                    (update + 1) % s.evaluation.every == 0 or update + 1 == s.updates
                ):
                    metrics["validation"] = self._validate(update + 1, updater, pool)
                append_jsonl(self.folder / "metrics.jsonl", metrics)
                self.tracking.follow()
                show(metrics)
                last = update + 1 == s.updates or self.interrupted
                if last or (update + 1) % s.checkpoint_every == 0:
                    self._save("latest", update + 1, updater, pool)
                if self.interrupted and update + 1 < s.updates:
                    return False
        pool.close()
        return True

    def _update(
        self, update: int, updater: Updater, pool: TrainingEnvironments, show: Any
    ) -> dict[str, Any]:
        s = self.settings
        started = time.perf_counter()
        generator = torch.Generator().manual_seed(update_seed(s.seed, update))
        pool.set_progress(update / s.updates)
        sampled, kept = pool.sample(
            self._sampler(updater), update, generator, lambda run, n: show.rollout(update, run, n)
        )
        self._rest()
        rolled = time.perf_counter()
        show.learning(update)
        leave_out(kept, self.policy.tokenizer, s.world_model)
        transitions = collect(kept)
        experience = prepare(
            transitions,
            s.algorithm,
            s.objective,
            s.world_model,
            self.reward_terms,
            updater.signals(transitions),
            self.policy.chat.ask,
            s.optimizer.micro_batch_tokens if self.policy.can_join else 0,
        )
        if s.record.every and update % s.record.every == 0:
            kept_groups = pool.recorded(sampled, s.record.groups)
            record(self.folder, update + 1, kept_groups, transitions, experience, self.policy, s)
        metrics: dict[str, Any] = updater.step(experience, update, update_seed(s.seed, update))
        updater.release()
        return {
            "update": update + 1,
            **pool.metrics(sampled),
            **experience.metrics,
            **metrics,
            "tokens": sum(len(row.ids) for row in experience.rows),
            "sampled_tokens": sampled_tokens(sampled),
            "transitions": len(experience.advantages),
            "seconds_rollout": rolled - started,
            "seconds_train": time.perf_counter() - rolled,
            "peak_memory_mb": _peak_memory(self.device) / 2**20,
            "time": time.time(),
        }

    def _sampler(self, updater: Updater) -> LocalPolicy | FollowingVLLM:
        """What samples the episodes: the policy, or an engine that follows its weights."""
        if self._engine is None:
            rollout = self.settings.rollout
            self._engine = rollout_policy(
                self.policy, rollout.engine, rollout.vllm, updater.states_to_come()
            )
        return self._engine

    def _rest(self) -> None:
        """Gives an engine's memory to training, until it samples again."""
        if self._engine is not None and not isinstance(self._engine, LocalPolicy):
            self._engine.rest()

    def _resume(self, updater: Updater, pool: TrainingEnvironments) -> int:
        saved = find_checkpoint(self.folder / "checkpoints" / "latest")
        start = 0
        if saved is not None:
            state = load_checkpoint(saved, self.policy)
            updater.load_state_dict(state["optimizer"])
            pool.load_state_dict(state["pool"])
            start = int(state["update"])
            self.display.say(f"Resuming after update {start}.")
        for name in ("metrics.jsonl", "validation.jsonl"):
            truncate_jsonl(self.folder / name, "update", start + 1)
        return start

    def _save(self, name: str, update: int, updater: Updater, pool: TrainingEnvironments) -> None:
        state = {
            "update": update,
            "optimizer": updater.state_dict(),
            "pool": pool.state_dict(),
            "settings": self.settings.to_dict(),
        }
        save_checkpoint(self.folder / "checkpoints" / name, self.policy, state)

    # --- evaluation --------------------------------------------------------------------------------

    def _validate(self, update: int, updater: Updater, pool: TrainingEnvironments) -> float:
        """Success on the selection panel; the best policy so far, by ``select_by``, is kept."""
        e = self.settings.evaluation
        result, _ = evaluate_members(
            self._sampler(updater),
            self.settings,
            {m.name: m.selection_split for m in self.settings.members},
            e.selection_tasks,
        )
        self._rest()
        record = {"update": update, **{k: result[k] for k in ("success_rate", "n", "ci95")}}
        record["score"] = result["score"]["mean"]
        if self.settings.mixed:
            rates = {name: part["success_rate"] for name, part in result["by_type"].items()}
            record |= {f"success_rate/{name}": rate for name, rate in rates.items()}
        log = self.folder / "validation.jsonl"
        earlier = [row[e.select_by] for row in _records(log)]
        append_jsonl(log, record)
        if record[e.select_by] >= max(earlier, default=0.0):
            self._save("best", update, updater, pool)
        return float(record["success_rate"])

    def _evaluate(self, when: str, policy: LocalPolicy) -> None:
        e = self.settings.evaluation
        path = self.folder / f"eval_{when}.json"
        if path.exists() or e.tasks == 0:
            return
        shared = shared_evaluation(self.settings) if when == "before" else None
        episodes_path = self.folder / f"episodes_{when}.jsonl"
        if shared is not None and (shared / "result.json").exists():
            shutil.copyfile(shared / "episodes.jsonl", episodes_path)
            found = json.loads((shared / "result.json").read_text(encoding="utf-8"))
            write_json(path, {**found, "model": self.settings.name})
            return
        members = self.settings.members
        count = e.tasks * e.plays * len(members)
        with self.display.task(f"evaluating {when} RL", count) as advance:
            result, episodes = evaluate_members(
                policy,
                self.settings,
                {m.name: m.split for m in members},
                e.tasks,
                e.plays,
                self.settings.name,
                lambda done, _: advance(done),
            )
        each = -(-self.settings.keep_episodes // len(members))
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
    """The lines of a file that this engine wrote; none where it has not begun."""
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


def _peak_memory(device: torch.device) -> float:
    """Bytes: the most that the GPU's allocator held, or this process had resident, so far."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


class _graceful:
    """Turns the first Ctrl-C (or SIGTERM) into a request to stop after the current update."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __enter__(self) -> None:
        self.previous = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.previous[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread: nothing to catch there
                return

    def _ask(self, number: int, frame: Any) -> None:
        if self.run.interrupted:
            raise KeyboardInterrupt
        self.run.interrupted = True
        self.run.display.say("Stopping after the current step (again: at once) ...")

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
