"""An environment as a package for the hub of OpenEnv (manifest, server, Dockerfile) or of verifiers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from paw_gym.core import AgentDefaults
from paw_gym.internals.files import new_folder, require_free, write_text
from paw_gym.registration import PLUGIN_GROUP, make_text_env, text_env_spec

_RESOURCES = {"cpu": 1.0, "memory_mb": 4096, "disk_mb": 4096, "episode_timeout_s": 3600.0}
"""declared limits"""
_UNBOUNDED = 1e9
"""stands for a reward without a known bound: the manifest requires numbers"""

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
dependencies = [{needs}{plugins}]

[tool.hatch.build.targets.wheel]
include = ["{wheel}"]
{more}"""
# an argument says what is installed: a wheel, or an address of the source
_DOCKERFILE = """\
FROM python:3.12-slim
ARG PAW_GYM=paw-gym[openenv]
RUN pip install --no-cache-dir "$PAW_GYM" "openenv>=0.10" uvicorn{plugins}
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
_TASKSET = '''\
"""The tasks of {name} for verifiers: vf-eval {module}"""

import json

import verifiers.v1 as vf

from paw_gym.adapters.verifiers import PawEnv, PawTask, PawTaskset, PawTasksetConfig

__all__ = ["PawEnv", "Tasks"]


class Config(PawTasksetConfig):
    env_id: str = {env_id!r}
    env_kwargs: dict = json.loads({settings!r})


class Tasks(PawTaskset, vf.Taskset[PawTask, Config]):
    pass
'''


def write_openenv(out: Path, env_id: str, settings: Mapping[str, Any], force: bool = False) -> str:
    """Writes a package that ``openenv validate`` accepts, and returns how to validate it.

    Args:
        out: the folder to make.
        settings: of ``make_agent_env``, including those of the environment; JSON values.

    Raises:
        FileExistsError: the folder exists; ``force`` replaces one that an earlier call made.
        ValueError: the environment cannot be made, or a setting is not a JSON value.
    """

    def files(words: dict[str, str], agent: AgentDefaults) -> dict[str, str]:
        best = _UNBOUNDED if agent.success_reward is None else agent.success_reward
        least = -_UNBOUNDED if agent.success_reward is None else min(0.0, agent.invalid_penalty)
        manifest = {
            "spec_version": 1,
            "name": words["module"],
            "version": "0.1.0",
            "type": "space",
            "runtime": "fastapi",
            "app": "server.app:app",
            "port": 8000,
            "validation": {
                "reward": {"range": [least, best], "oracle_tolerance": 0.0, "floor_margin": 0.1},
                "resources": _RESOURCES,
                "capabilities": {"verifier": {"kind": "reward_channel"}, "task_api": True},
                "types": {"tags": ["text", "multi-turn"]},
            },
        }
        script = '\n[project.scripts]\nserver = "server.app:main"\n'
        return {
            "openenv.yaml": yaml.safe_dump(manifest, sort_keys=False),
            "pyproject.toml": _PROJECT.format(
                **words, wheel="server", needs='"openenv>=0.10", "paw-gym", "uvicorn"', more=script
            ),
            "Dockerfile": _DOCKERFILE.format(plugins=words["plugins"].replace(",", "")),
            "README.md": _README.format(**words),
            "server/__init__.py": '"""The server of this package."""\n',
            "server/app.py": _APP.format(**words),
        }

    _write(out, "openenv.yaml", env_id, settings, force, files)
    return f"openenv validate {out} --level static"


def write_verifiers(
    out: Path, env_id: str, settings: Mapping[str, Any], force: bool = False
) -> str:
    """Writes a package with the tasks for verifiers; arguments and errors as for ``write_openenv``."""

    def files(words: dict[str, str], _: AgentDefaults) -> dict[str, str]:
        module = f"{words['module']}.py"
        return {
            "pyproject.toml": _PROJECT.format(
                **words, wheel=module, needs='"verifiers>=0.4", "paw-gym"', more=""
            ),
            "README.md": "# {name}\n\n{description}\n\n    vf-eval {module} -m MODEL\n".format(
                **words
            ),
            module: _TASKSET.format(**words),
        }

    _write(out, "pyproject.toml", env_id, settings, force, files)
    return f"pip install {out}"


PACKAGES = {"openenv": write_openenv, "verifiers": write_verifiers}
"""by framework: the function that writes a package and says how to use it"""


def _write(
    out: Path,
    mark: str,
    env_id: str,
    settings: Mapping[str, Any],
    force: bool,
    files: Callable[[dict[str, str], AgentDefaults], dict[str, str]],
) -> None:
    """Writes the files; with ``force``, a folder with the file ``mark`` is replaced."""
    require_free(out, mark, force)
    env = make_text_env(env_id, **settings)
    agent, spec = env.unwrapped.agent, text_env_spec(env_id.rpartition(":")[2])
    env.close()
    name = re.sub(r"\W+", "_", spec.id.rpartition("/")[2].rpartition("-v")[0]).lower()
    try:
        text = json.dumps(dict(settings))
    except TypeError as error:
        raise ValueError(f"The settings of {env_id} cannot be written: {error}.") from error
    found = ((re.split("[.:]", p.value)[0], p.dist) for p in entry_points(group=PLUGIN_GROUP))
    plugins = sorted({dist.name for package, dist in found if dist and package == spec.package})
    words = {
        "name": spec.id,
        "env_id": env_id,
        "description": spec.description,
        "project": f"paw-{name}".replace("_", "-"),
        "module": f"paw_{name}",
        "settings": text,
        "plugins": "".join(f', "{plugin}"' for plugin in plugins),
    }
    contents = files(words, agent)
    with new_folder(out) as folder:
        for place, content in contents.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / place, content)
