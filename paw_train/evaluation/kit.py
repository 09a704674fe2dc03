"""``paw panel export``: a panel as a folder that any program's loader can point at."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paw_gym.core import TextEnv
from paw_gym.envs.alfworld.env import OfficialGame, ProceduralGame
from paw_gym.envs.search_qa.env import SearchQAEnv
from paw_gym.envs.webshop.goals import Goal
from paw_gym.internals.files import json_text, new_folder, require_free, write_json, write_text
from paw_train.environments import agent_env_maker
from paw_train.evaluation.fingerprint import environment_record
from paw_train.evaluation.panels import PLACES
from paw_train.evaluation.program import make_job
from paw_train.evaluation.runner import environment_seeds

LOADER = Path(__file__).with_name("panel_loader.py")


def write_kit(
    name: str, out: Path, overrides: Sequence[str] = (), force: bool = False
) -> dict[str, Any]:
    """Writes ``panel.json``, whose contents it returns, ``tasks.jsonl``, the loader, and generated games.

    Args:
        name: of the panel.
        overrides: settings as of ``paw eval``, such as ``env.kwargs.data_dir=DIR``; no path is written.
        force: replace a folder that an earlier call made.
    """
    require_free(out, "panel.json", force)
    plan = make_job("random", overrides, panel=name).plan
    panel, make = plan.panel, agent_env_maker(plan.env, plan.split)
    kwargs = {key: value for key, value in plan.env.kwargs.items() if key not in PLACES}
    about = {
        "panel": panel.name,
        "panel_hash": panel.hash,
        "panel_note": panel.note,
        "env_id": plan.env.id,
        "tasks": len(panel.task_ids),
        "environment": environment_record(plan.env, plan.split, panel, make),
        "settings": {
            "env": plan.env.replace(kwargs=kwargs).model_dump(),
            "panel_seed": plan.panel_seed,
        },
    }
    env, lines = make().text_env, []
    with new_folder(out) as folder:
        for task_id, seed in environment_seeds(panel, plan.panel_seed).items():
            start, _ = env.reset(seed=seed, options={"task_id": task_id})
            task = env.task
            row = {"id": task_id, "type": task.type, "goal": task.instruction, "seed": seed}
            lines.append(json_text({**row, "start": start, **_of_data(env, folder)}) + "\n")
        write_text(folder / "tasks.jsonl", "".join(lines))
        shutil.copyfile(LOADER, folder / LOADER.name)
        write_json(folder / "panel.json", about)
    env.close()
    return about


def _of_data(env: TextEnv, out: Path) -> dict[str, Any]:
    """The file, goal or answers of the task being played, for a program with a world of its own."""
    task, data = env.task, env.task.data
    if isinstance(data, OfficialGame | ProceduralGame):
        place = f"{task.id}/game.tw-pddl"
        if isinstance(data, OfficialGame):
            content = data.path.read_bytes()
        else:
            content = json.dumps(data.json()).encode()
            (out / place).parent.mkdir(parents=True)
            (out / place).write_bytes(content)
        return {"file": place, "sha256": hashlib.sha256(content).hexdigest()}
    if isinstance(data, Goal):
        return {"webshop_goal": data.to_original()}
    if isinstance(env, SearchQAEnv):
        return {"golden_answers": list(env.question.golden_answers)}
    return {}
