"""Checks of what happens inside an episode, up to its end and into the record."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from paw_gym.contract.subject import (
    JUNK,
    CheckSkipped,
    ContractViolation,
    Moment,
    Script,
    Subject,
    choose,
    continue_with,
    replay,
    require,
    start,
)
from paw_gym.core import INFO_KEYS, Outcome, TextEnv
from paw_gym.internals.canonical import require_json
from paw_gym.internals.printable import counted
from paw_gym.internals.validation import check_first_outcome, check_outcome
from paw_gym.transition import Episode, read_jsonl, read_parquet, write_jsonl, write_parquet


def info_keys(subject: Subject) -> str:
    """``info`` holds the contract's keys, of the right types, and plain JSON values, at every step."""
    count = 0
    for script in subject.scripts:
        for number, moment in enumerate(replay(subject.make(), script)):
            _check_moment(moment, script.task_id, "reset" if number == 0 else f"step {number}")
            count += 1
    return counted(count, "info")


def _check_moment(moment: Moment, task_id: str, where: str) -> None:
    info = moment.info
    missing = [key for key in INFO_KEYS if key not in info]
    require(not missing, f"info at {where} lacks {', '.join(map(repr, missing))}.")
    require(
        info["task_id"] == task_id,
        f"info['task_id'] at {where} is {info['task_id']!r}; the task is {task_id!r}.",
    )
    try:
        require_json(info, "info")
    except TypeError as error:
        raise ContractViolation(f"info at {where} is not plain JSON values: {error}") from error
    # the core has checked these, but an environment's own reset, step or _info may replace them
    check = check_first_outcome if where == "reset" else check_outcome
    given = {
        key: info[key] for key in ("success", "score", "action_is_valid", "admissible_actions")
    }
    check(Outcome(moment.observation, moment.reward, moment.terminated, **given), where)


def admissible_actions(subject: Subject) -> str:
    """Every action that is listed as admissible is accepted (if actions are listed)."""
    tried = 0
    for script in subject.scripts:
        env, rng = subject.make(), random.Random(script.seed)
        moment, left = start(env, script.seed, script.task_id), list(script.actions)
        while not moment.over:
            tried += _try_listed(env, env.list_actions(), rng)
            if not left:
                break
            moment = Moment(*env.step(left.pop(0)))
    return f"{counted(tried, 'action')} tried" if tried else "not listed by this environment"


def _try_listed(env: TextEnv, listed: Sequence[str] | None, rng: random.Random) -> int:
    if not listed:
        return 0
    require(len(set(listed)) == len(listed), "The list of admissible actions repeats an action.")
    state = env.save_state()
    sample = rng.sample(listed, min(3, len(listed)))
    for action in sample:
        info = env.step(action)[4]
        require(
            info["action_is_valid"], f"{action!r} is listed as admissible, but was not accepted."
        )
        env.restore_state(state)
    return len(sample)


def invalid_actions(subject: Subject) -> str:
    """No string makes ``step`` raise; what is not listed as admissible is invalid."""
    for junk in JUNK:
        env = subject.make()
        before = start(env, subject.seed, subject.task_ids[0])
        listed = before.info["admissible_actions"]
        try:
            moment = Moment(*env.step(junk))
        except Exception as error:
            raise ContractViolation(
                f"step({junk!r:.60}) raised {type(error).__name__}: {error}. An action that is not "
                "accepted must say so in the observation and in info['action_is_valid']."
            ) from error
        _check_moment(moment, subject.task_ids[0], f"step({junk!r:.40})")
        if listed is not None and junk not in listed:
            require(
                not moment.info["action_is_valid"],
                f"step({junk!r:.60}) is not admissible, but info['action_is_valid'] is True.",
            )
    for response in (*(junk for junk in JUNK if "<action>" not in junk), "<think></think><action>"):
        agent = subject.agent()
        start(agent, subject.seed, subject.task_ids[0])
        info = agent.step(response)[4]
        require(
            not info["action_is_valid"] and info["transition"].response == response,
            f"The response {response!r:.60} has no action, but its transition is not invalid.",
        )
    return f"{len(JUNK)} strings, bare and as raw responses"


def transitions(subject: Subject) -> str:
    """Each step behind ``AgentInterface`` gives a complete transition, the last one too."""
    count = 0
    for script in subject.scripts:
        agent = subject.agent()
        # white space around an action, or tags inside it, do not survive the way through a response
        actions = [
            agent.template.read_response(agent.response_for(a)).action for a in script.actions
        ]
        raw = replay(subject.make(), Script(script.seed, script.task_id, tuple(actions)))
        prompt = start(agent, script.seed, script.task_id).observation
        for number, action in enumerate(actions[: len(raw) - 1]):
            response = agent.response_for(action)
            moment = Moment(*agent.step(response))
            got, expected = moment.info["transition"], raw[number + 1]
            where = f"transition {number} of task {script.task_id!r}"
            for name, value in (
                ("step", number),
                ("prompt", prompt),
                ("response", response),
                ("next_observation", expected.observation),
                ("terminated", expected.terminated),
                ("truncated", expected.truncated),
            ):
                require(
                    getattr(got, name) == value,
                    f"{where}: {name} is {getattr(got, name)!r:.120}; expected {value!r:.120}.",
                )
            prompt = moment.observation
            count += 1
        if raw[-1].over:
            require(raw[-1].observation, f"Task {script.task_id!r}: the last observation is empty.")
    return counted(count, "transition")


LONGEST = 2000
"""steps that an episode is played here at most"""


def truncation(subject: Subject) -> str:
    """An episode that uses up ``max_steps`` is truncated then; earlier only if the outcome says so."""
    budget = subject.make().max_steps
    if budget > LONGEST:
        raise CheckSkipped(
            f"an episode may take max_steps={budget:,} steps; up to {LONGEST:,} are played here"
        )
    longest = 0
    for number, task_id in enumerate(subject.task_ids):
        for kind in ("junk", "walk"):
            env, rng = subject.make(), random.Random(number)
            moment, steps = start(env, subject.seed + number, task_id), 0
            while not moment.over:
                listed = moment.info["admissible_actions"]
                action = JUNK[2] if kind == "junk" else choose(rng, listed)
                moment, steps = Moment(*env.step(action)), steps + 1
                require(
                    moment.over or steps < env.max_steps,
                    f"Task {task_id!r} went on after max_steps={env.max_steps} steps.",
                )
            require(
                moment.terminated or steps == env.max_steps or env._last.truncated,
                f"Task {task_id!r} was truncated after {steps} steps; max_steps is {env.max_steps}, and no "
                "Outcome said truncated=True.",
            )
            longest = max(longest, steps)
            if moment.truncated:
                return f"truncated after {counted(steps, 'step')}"
    return f"every episode ended by the rules, after at most {counted(longest, 'step')}"


def step_after_end(subject: Subject) -> str:
    """``step`` raises before the first reset and after the end, a restored one included."""
    fresh = subject.make()
    _require_refusal(fresh, "before the first reset")
    for script in subject.scripts:
        env = subject.make()
        moment, rng = start(env, script.seed, script.task_id), random.Random(0)
        actions = list(script.actions)
        for _ in range(min(env.max_steps, LONGEST)):
            if moment.over:
                break
            listed = moment.info["admissible_actions"]
            moment = Moment(*env.step(actions.pop(0) if actions else choose(rng, listed)))
        if not moment.over:
            raise CheckSkipped("the episode does not end: see the check truncation")
        _require_refusal(env, "after the end of the episode")
        copy = subject.make()
        copy.restore_state(env.save_state())
        _require_refusal(copy, "in a restored end of an episode")
    return counted(len(subject.scripts), "end")


def _require_refusal(env: TextEnv, when: str) -> None:
    try:
        env.step(JUNK[2])
    except RuntimeError:
        return
    raise ContractViolation(f"step() {when} did not raise RuntimeError.")


def records_jsonl(subject: Subject) -> str:
    """Episodes come back equal from a JSONL file."""
    return _check_records(subject, "JSONL", write_jsonl, read_jsonl)


def records_parquet(subject: Subject) -> str:
    """Episodes come back equal from a Parquet file."""
    if find_spec("pyarrow") is None:
        raise CheckSkipped(
            'pyarrow is not installed: pip install ".[parquet]" in your clone of PaW-Gym'
        )
    return _check_records(subject, "Parquet", write_parquet, read_parquet)


def _check_records(
    subject: Subject,
    form: str,
    write: Callable[[Path, list[Episode]], int],
    read: Callable[[Path], Iterable[Episode]],
) -> str:
    written = []
    for script in subject.scripts:
        for mode in ("window", "conversation"):
            agent = subject.agent(mode)
            start(agent, script.seed, script.task_id)
            played = continue_with(agent, [agent.response_for(a) for a in script.actions])
            written.append(agent.new_episode())
            written[-1].transitions += [moment.info["transition"] for moment in played]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"episodes.{form.lower()}"
        write(path, written)
        found = list(read(path))
    count = len(written)
    require(count == len(found), f"{form}: {counted(count, 'episode')} written, {len(found)} read.")
    for left, right in zip(written, found, strict=True):
        require(left == right, f"{form}: the episode of task {left.task_id!r} came back different.")
    return counted(count, "episode")
