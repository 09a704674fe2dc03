"""An environment as a package of OpenEnv: manifest, server, Dockerfile; ``openenv validate`` accepts it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paw_gym.internals.files import write_text
from paw_gym.registration import make_text_env, text_env_spec

_SECONDS, _MEGABYTES = 3600.0, 4096
"""declared limits of an episode, and of memory and disk"""
_UNBOUNDED = 1e9
"""stands for a reward without a bound that is known: the manifest wants numbers"""

_APP = '''\
"""The server: uvicorn server.app:app"""

import json

from paw_gym.adapters.openenv import create_openenv_app

SETTINGS = json.loads({settings!r})
app = create_openenv_app({env_id!r}, **SETTINGS)


def main():
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
'''
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{project}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["openenv>=0.10", "paw-gym", "uvicorn"]

[project.scripts]
server = "server.app:main"

[tool.hatch.build.targets.wheel]
packages = ["server"]
"""
# what is installed is an argument: a wheel, or an address of the source
_DOCKERFILE = """\
FROM python:3.12-slim
ARG PAW_GYM=paw-gym[openenv]
RUN pip install --no-cache-dir "$PAW_GYM" "openenv>=0.10" uvicorn
WORKDIR /app/env
COPY . /app/env
EXPOSE 8000
CMD ["uvicorn", "server.app:app", "--host", "0.0.0.0", "--port", "8000"]
"""
_README = """\
# {name}

{description}

Actions are `{{"message": RESPONSE}}`, the action between `<action>` tags; observations have the next prompt
as `text`, and the task, success and score in `info`. `reset` takes `seed`, `task_id` and `task_index`.

    openenv validate . --level static
    docker build -t {project} . && docker run -p 8000:8000 {project}

The server has no token: keep it behind a proxy that asks for one.
"""


def write_openenv(out: Path, env_id: str, settings: Mapping[str, Any], force: bool = False) -> None:
    """Writes the package of an environment.

    Args:
        out: the folder to make.
        settings: of ``make_agent_env``, those of the environment included; values of JSON.

    Raises:
        FileExistsError: the folder is there; ``force`` replaces one that an earlier call made.
        ValueError: the environment cannot be made, or a setting is no value of JSON.
    """
    if out.exists() and not (force and (out / "openenv.yaml").is_file()):
        raise FileExistsError(f"{out} exists already: give another folder, or --force.")
    env = make_text_env(env_id, **settings)
    agent, spec = env.unwrapped.agent, text_env_spec(env_id.rpartition(":")[2])
    env.close()
    name = re.sub(r"\W+", "_", spec.id.rpartition("/")[2].rpartition("-v")[0]).lower()
    best = _UNBOUNDED if agent.success_reward is None else agent.success_reward
    least = -_UNBOUNDED if agent.success_reward is None else min(0.0, agent.invalid_penalty)
    manifest = {
        "spec_version": 1,
        "name": f"paw_{name}",
        "version": "0.1.0",
        "type": "space",
        "runtime": "fastapi",
        "app": "server.app:app",
        "port": 8000,
        "validation": {
            "reward": {"range": [least, best], "oracle_tolerance": 0.0, "floor_margin": 0.1},
            "resources": {
                "cpu": 1.0,
                "memory_mb": _MEGABYTES,
                "disk_mb": _MEGABYTES,
                "episode_timeout_s": _SECONDS,
            },
            "capabilities": {"verifier": {"kind": "reward_channel"}, "task_api": True},
            "types": {"tags": ["text", "multi-turn"]},
        },
    }
    try:
        text = json.dumps(dict(settings))
    except TypeError as error:
        raise ValueError(f"The settings of {env_id} cannot be written: {error}.") from error
    project = f"paw-{name}".replace("_", "-")
    files = {
        "openenv.yaml": yaml.safe_dump(manifest, sort_keys=False),
        "pyproject.toml": _PROJECT.format(project=project),
        "Dockerfile": _DOCKERFILE,
        "README.md": _README.format(name=spec.id, description=spec.description, project=project),
        "server/__init__.py": '"""The server of this package."""\n',
        "server/app.py": _APP.format(settings=text, env_id=env_id),
    }
    if out.exists():
        shutil.rmtree(out)
    for place, content in files.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        write_text(out / place, content)
