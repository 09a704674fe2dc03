"""Changes one operator, constant or statement at a time, and looks whether a test fails.

    python scripts/mutation.py [--each 15] [--seed 0] [--only NAME] [--out benchmarks/mutation.json]

Works in a copy of the tracked files. Each mutant runs the tests that belong to its module in a fork of
this process, which has imported the slow libraries. A mutant that runs out of time counts as killed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UPDATE = "minibatches schedule_share averaged update_seed optimizer_steps"
RUN_SEED = "test_the_seed_of_a_run_decides_its_environments_seeds"
SERVERS = "env_servers/sessions env_servers/contracts env_servers/tokens env_servers/stopping"
TARGETS: dict[str, tuple[str, str, str]] = {
    # name: (module, functions - all if empty -, its tests or one of them: a/b is tests/a/test_b.py)
    "rows": ("paw_train/rollouts/tokens.py", "", "train/tokens train/update"),
    "batches": ("paw_train/losses/batch.py", "", "train/objective train/update"),
    "advantages": ("paw_train/algorithms/group_statistics.py", "", "train/advantages"),
    "gigpo": ("paw_train/algorithms/gigpo.py", "", "train/advantages"),
    "gae": ("paw_train/algorithms/ppo.py", "", "train/advantages train/experience"),
    "paw": ("paw_train/algorithms/paw.py", "", "train/world_model"),
    "selection": ("paw_train/algorithms/selection.py", "", "train/world_model train/experience"),
    "losses": ("paw_train/losses/objective.py", "", "train/objective train/update"),
    "world model": ("paw_train/losses/world_model.py", "", "train/world_model train/objective"),
    "update": ("paw_train/algorithms/update.py", UPDATE, "train/update train/objective"),
    "guarded step": ("paw_train/policies/local/guarded_step.py", "", "train/update train/cloning"),
    "panel seeds": (
        "paw_train/evaluation/runner.py",
        "environment_seeds",
        f"train/evaluation::{RUN_SEED}",
    ),
    "response seeds": ("paw_train/rollouts/policy.py", "response_seed", "train/rollout"),
    "files": ("paw_gym/internals/files.py", "", "gym/internals train/checkpoint"),
    "find checkpoint": ("paw_train/policies/checkpoints.py", "", "train/checkpoint"),
    "checkpoint": ("paw_train/policies/local/checkpoint.py", "", "train/checkpoint"),
    "locks": ("paw_gym/internals/locks.py", "", "gym/internals"),
    "service": ("env_servers/service.py", "", SERVERS),
    "sessions": ("env_servers/sessions.py", "", "env_servers/sessions"),
}
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
LEAST, TIMES = 60, 10
"""seconds that a mutant's tests may take, whatever they take without it, and times what they take"""


def mutants(source: str, functions: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was changed, the changed module) of each mutant."""
    tree = ast.parse(source)
    skipped = {id(n) for top in ast.walk(tree) for n in _unread(top)}
    names = functions.split()
    roots = [n for n in tree.body if not names or getattr(n, "name", None) in names]
    for node in [n for root in roots for n in ast.walk(root) if id(n) not in skipped]:
        for change, field, value in _changes(node):
            before, line = ast.unparse(node).split("\n")[0][:90], getattr(node, "lineno", 0)
            was = getattr(node, field)
            setattr(node, field, value)
            yield line, f"{before}  ->  {change}", ast.unparse(ast.fix_missing_locations(tree))
            setattr(node, field, was)


def _unread(top: ast.AST) -> Iterator[ast.AST]:
    """Type annotations: they are not run."""
    for name in ("annotation", "returns"):
        if (part := getattr(top, name, None)) is not None:
            yield from ast.walk(part)


def _changes(node: ast.AST) -> Iterator[tuple[str, str, Any]]:
    """(new text, field, new value) of each change to a node."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        yield SWAPS[type(node.op)].__name__, "op", SWAPS[type(node.op)]()
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = SWAPS[type(node.ops[0])]
        yield swapped.__name__, "ops", [swapped()]
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "negated", "test", ast.UnaryOp(ast.Not(), copy.deepcopy(node.test))
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        yield repr(new), "value", new
    if isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "return None", "value", ast.Constant(None)
    for field in ("body", "orelse", "finalbody"):
        held = getattr(node, field, None)
        for i, inner in enumerate(held if isinstance(held, list) else []):
            call = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call)
            if call or isinstance(inner, ast.Raise | ast.AugAssign):
                text = ast.unparse(inner).split("\n")[0][:60]
                yield f"without {text}", field, [*held[:i], ast.Pass(), *held[i + 1 :]]


def killed(tests: list[str], seconds: float) -> bool:
    """True if the tests fail, or take longer than so many seconds, in a fork of this process."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> None:
    """Writes what was tried and what survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=15, help="mutants sampled of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TARGETS, action="append")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/mutation.json"))
    options = parser.parse_args()
    out = options.out.resolve()
    report = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
        for name in listed.stdout.split("\n")[:-1]:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, Path(folder) / name)
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        for library in ("torch", "transformers", "hypothesis", "fastapi", "httpx", "peft"):
            with contextlib.suppress(ImportError):
                __import__(library)
        for name in options.only or TARGETS:
            module, functions, listed_tests = TARGETS[name]
            tests = [
                re.sub(r"(\w+)(::|$)", r"test_\1.py\2", f"tests/{t}", count=1)
                for t in listed_tests.split()
            ]
            source = Path(module).read_text(encoding="utf-8")
            found = list(mutants(source, functions))
            chosen = random.Random(options.seed).sample(found, min(options.each, len(found)))
            start = time.monotonic()
            assert not killed(tests, math.inf), f"{name}: the tests fail as it is"
            seconds = LEAST + TIMES * (time.monotonic() - start)
            survived = []
            for line, change, text in sorted(chosen):
                Path(module).write_text(text, encoding="utf-8")
                if not killed(tests, seconds):
                    survived.append(f"{module}:{line}: {change}")
                    print(survived[-1], flush=True)
            Path(module).write_text(source, encoding="utf-8")
            report[name] = {
                "module": module, "functions": functions.split(), "tests": tests,
                "mutants": len(found), "sampled": len(chosen), "seed": options.seed,
                "killed": len(chosen) - len(survived), "survived": survived,
            }  # fmt: skip
            print(f"{name}: {report[name]['killed']} of {len(chosen)} killed", flush=True)
            out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
