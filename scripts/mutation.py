"""Changes one operator, constant or statement at a time, and checks whether a test fails.

    python scripts/mutation.py [--each 15] [--seed 0] [--only NAME] [--out benchmarks/mutation.json]

Works in a copy of what git has staged. Each mutant runs the tests that belong to its module in a fork of a
process that has collected them, and in one of its own if it survives that or changes more than a function. A
mutant that runs out of time counts as killed. What is `equivalent` in mutation.toml is listed, not counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import inspect
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOMS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
LIBRARIES = """torch.optim torch._dynamo transformers.models.llama.modeling_llama hypothesis.strategies peft
    fastapi httpx uvicorn rich.console pyarrow"""
ANEW = 99
"""status of a mutant that needs a process of its own"""
LEAST, TIMES, LONGEST = 20, 5, 900
"""a mutant's tests may take LEAST s plus TIMES their time without it; LONGEST s in a process of their own"""


def mutants(source: str, names: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """(line, what was changed, the changed module, the function if only it was changed) of each mutant."""
    tree = ast.parse(source)
    skipped = {id(n) for top in ast.walk(tree) for n in _unread(top)}
    inside = {id(n): name for name, part in _bodies(tree.body) for n in ast.walk(part)}
    roots = [n for n in tree.body if not names or getattr(n, "name", None) in names]
    for node in [n for root in roots for n in ast.walk(root) if id(n) not in skipped]:
        for change, field, value in _changes(node):
            before, line = ast.unparse(node).split("\n")[0][:90], getattr(node, "lineno", 0)
            if isinstance(node, ast.Constant):
                text = source.splitlines()[line - 1]
                change = (text[: node.col_offset] + change + text[node.end_col_offset :]).strip()
            was = getattr(node, field)
            setattr(node, field, value)
            text = ast.unparse(ast.fix_missing_locations(tree))
            place = was[0] if field == "body" and isinstance(was, list) else node
            yield line, f"{before}  ->  {change}", text, inside.get(id(place), "")
            setattr(node, field, was)


def _bodies(parts: list[ast.stmt], name: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """(qualified name, statement) of the functions of a module and of its classes."""
    for part in parts:
        if isinstance(part, ast.ClassDef):
            yield from _bodies(part.body, f"{part.name}.")
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((name + part.name, statement) for statement in part.body)


def _unread(top: ast.AST) -> Iterator[ast.AST]:
    """Annotations, which are not run; ``strict=`` and a dataclass's options, which only reject mistakes."""
    parts = [getattr(top, name, None) for name in ("annotation", "returns")]
    refusals = ("strict", "frozen", "slots", "eq", "kw_only")
    parts += [top.value] if isinstance(top, ast.keyword) and top.arg in refusals else []
    for part in parts:
        if part is not None:
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


def forked(tests: list[str], *plugins: object) -> int:
    """The process id of a fork of this one that runs tests."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
        os._exit(int(pytest.main(options, plugins=plugins)))
    return child


def ended(child: int, seconds: float) -> int:
    """The exit status of a process, which is killed if it takes longer than ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Mutants:
    """Plugin of pytest: runs what it collected once for each text of a module, in a fork with its code."""

    def __init__(self, module: str, texts: list[tuple[str, str]], out: Path) -> None:
        self.module, self.texts, self.out = module, texts, out

    def pytest_collection_finish(self) -> None:
        seconds, found = math.inf, []
        for text, function in self.texts:  # the first is the module as it is
            start, child = time.monotonic(), os.fork()
            if child == 0:
                os.setpgid(0, 0)
                Path(self.module).write_text(text, encoding="utf-8")
                if not found or self.takes(text, function):
                    return
                os._exit(ANEW)
            found.append(ended(child, seconds))
            if seconds == math.inf:
                seconds = LEAST + TIMES * (time.monotonic() - start)
        self.out.write_text(json.dumps(found), encoding="utf-8")
        os._exit(0)

    def takes(self, text: str, function: str) -> bool:
        """Gives the function its new code, if the module is imported; False if it has no such function."""
        found: Any = sys.modules.get(self.module.removesuffix(".py").replace("/", "."))
        if found is None:
            return True
        for name in function.split("."):
            found = vars(found).get(name)
        found = getattr(found, "fget", getattr(found, "__func__", found))
        found = inspect.unwrap(found) if callable(found) else found
        if getattr(found, "__qualname__", None) != function:
            return False
        code: Any = compile(text, self.module, "exec")
        for name in function.split("."):
            code = next(c for c in code.co_consts if getattr(c, "co_name", None) == name)
        found.__code__ = code
        return True


def main() -> None:
    """Writes what was tried and what survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=15, help="mutants sampled of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ROOMS, action="append")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/mutation.json"))
    options = parser.parse_args()
    out = options.out.resolve()
    report = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "checkout-index", "-a", f"--prefix={folder}/"], check=True)
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        for library in LIBRARIES.split():  # once for all tests
            with contextlib.suppress(ImportError):
                importlib.import_module(library)
        for name in options.only or ROOMS:
            room, statuses = ROOMS[name], Path(folder, ".statuses")
            module, tests, known = room["module"], room["tests"], room.get("equivalent", {})
            source = Path(module).read_text(encoding="utf-8")
            found = [m for m in mutants(source, room.get("functions", [])) if m[1] not in known]
            picked = random.Random(options.seed).sample(found, min(options.each, len(found)))
            chosen = sorted(picked)
            texts = [(ast.unparse(ast.parse(source)), ""), *(m[2:] for m in chosen)]
            assert ended(forked(tests, Mutants(module, texts, statuses)), math.inf) == 0
            first, *others = json.loads(statuses.read_text(encoding="utf-8"))
            assert first == 0, f"{name}: the tests fail as it is"
            survived = []
            for status, (line, change, text, _) in zip(others, chosen, strict=True):
                Path(module).write_text(text, encoding="utf-8")
                if status in (0, ANEW) and ended(forked(tests), LONGEST) == 0:
                    survived.append(f"{module}:{line}: {change}")
                    print(survived[-1], flush=True)
            Path(module).write_text(source, encoding="utf-8")
            report[name] = {
                **room, "mutants": len(found), "sampled": len(chosen), "seed": options.seed,
                "killed": len(chosen) - len(survived), "survived": survived,
            }  # fmt: skip
            print(f"{name}: {report[name]['killed']} of {len(chosen)} killed", flush=True)
            out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
