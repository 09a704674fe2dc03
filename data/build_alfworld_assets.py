"""Extract the facts that procedural ALFWorld games need from an installed `alfworld` wheel.

Run once per `alfworld` release (0.4.2 today), from an environment that has it:

    python data/build_alfworld_assets.py

Writes into `paw_gym/envs/alfworld/assets/`:

- `rooms.json`: the 120 AI2-THOR rooms of ALFRED: receptacles with a reachable pose, object types
  present, and the fixtures that stand in the room without a pose in the layout file;
- `facts.json`: which object may lie in which receptacle, affordances, goal wording, goal PDDL;
- `engine.json`: PDDL domain and grammar texts of both versions in use, so that a generated game is a complete
  `game.tw-pddl`.

Source of every fact: `alfworld/gen/layouts`, `alfworld/gen/constants.py`,
`alfworld/gen/goal_library.py`, `alfworld/data/alfred.pddl`, `alfworld/data/alfred.twl2`
(MIT licence). The modules are read as files, because importing `alfworld` needs torch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ASSETS = Path(__file__).resolve().parents[1] / "paw_gym" / "envs" / "alfworld" / "assets"
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
ROOM_KINDS = {"kitchen": 0, "living_room": 200, "bedroom": 300, "bathroom": 400}
ROOMS_PER_KIND = 30

MOVE_TO_PUT = (
    ("You arrive at {r.name}. ", "You arrive at {lend.name}. "),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
    ("move {o} to {r}", "put {o} in/on {r}"),
)
"""The older grammar's wording where the wheel's has `move`; official game files of
json_2.1.1 carry the older text."""


def load_module(path: Path) -> ModuleType:
    """Execute one file of the wheel without importing the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"cannot read {path}; is alfworld installed completely?")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_root() -> Path:
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("alfworld is not installed; run: pip install alfworld==0.4.2")
    return Path(next(iter(spec.submodule_search_locations)))


def provenance() -> dict[str, str]:
    version = importlib.metadata.version("alfworld")
    return {
        "_source": f"alfworld {version} (https://github.com/alfworld/alfworld)",
        "_licence": "MIT, Copyright (c) 2020 Mohit Shridhar and others",
        "_made_by": "data/build_alfworld_assets.py",
    }


def receptacle_type(layout_id: str) -> str:
    """`Sink|x|y|z|SinkBasin` is a SinkBasin, `Cabinet|x|y|z` a Cabinet."""
    parts = layout_id.split("|")
    return parts[4] if len(parts) == 5 else parts[0]


def receptacle_row(layout_id: str, pose: list[float]) -> list[Any]:
    """`[type, x, y, z, grid_x, grid_z, quarter_turns, horizon]`; metres, then 0.25 m grid cells."""
    x, y, z = (float(part) for part in layout_id.split("|")[1:4])
    pose_x, pose_z, rotation, horizon = pose
    grid = [round(pose_x * 4), round(pose_z * 4), int(rotation) // 90, int(horizon)]
    return [receptacle_type(layout_id), x, y, z, *grid]


def room(layouts: Path, number: int, static: set[str]) -> dict[str, Any]:
    openable = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    present = set(json.loads((layouts / f"FloorPlan{number}-objects.json").read_text()))
    rows = [receptacle_row(key, openable[key]) for key in sorted(openable)]
    posed = {row[0] for row in rows}
    return {
        "receptacles": rows,
        "fixtures": sorted((present & static) - posed),
        "objects": sorted(present - static),
    }


def rooms(root: Path, constants: ModuleType) -> dict[str, Any]:
    layouts = root / "gen" / "layouts"
    static = set(constants.RECEPTACLES) - set(constants.MOVABLE_RECEPTACLES)
    out: dict[str, Any] = {}
    for kind, base in ROOM_KINDS.items():
        for number in range(base + 1, base + 1 + ROOMS_PER_KIND):
            out[str(number)] = {"kind": kind, **room(layouts, number, static)}
    return out


def whole(names: set[str]) -> list[str]:
    """Object types without the sliced variants, which text games do not have."""
    return sorted(name for name in names if not name.endswith("Sliced"))


def goal_text(source: str) -> str:
    """The goal on one line; the library writes `#` for PDDL's dash and closes the problem too."""
    text = re.sub(r"\s+", " ", source.replace("#", "-")).strip()
    while text.count(")") > text.count("("):
        text = text.removesuffix(")").rstrip()
    return text


def facts(constants: ModuleType, library: ModuleType) -> dict[str, Any]:
    movable = set(constants.MOVABLE_RECEPTACLES)
    affordances = constants.VAL_ACTION_OBJECTS
    goals: Mapping[str, Mapping[str, Any]] = library.gdict
    return {
        "can_contain": {
            key: whole(value)
            for key, value in sorted(constants.VAL_RECEPTACLE_OBJECTS.items())
            if key not in movable
        },
        "openable": sorted(set(constants.OPENABLE_CLASS_LIST) - movable),
        "receptacle_objects": sorted(movable),
        "affordances": {key.lower(): whole(affordances[key]) for key in sorted(affordances)},
        "goals": {
            task: {"templates": goals[task]["templates"], "pddl": goal_text(goals[task]["pddl"])}
            for task in TASK_TYPES
        },
    }


def put_grammar(move_grammar: str) -> str:
    text = move_grammar
    for new, old in MOVE_TO_PUT:
        if new not in text:
            raise ValueError(f"grammar of this alfworld release lacks {new!r}: revise MOVE_TO_PUT")
        text = text.replace(new, old)
    return text[: text.index("action help {")].rstrip() + "\n"


def put_domain(domain: str) -> str:
    """The domain of the published games: Sink cleans too, and there is no action `help`."""
    sink = ";(receptacleType ?r SinkType)"
    if domain.count(sink) != 1 or domain.count("(:action help") != 1:
        raise ValueError("the PDDL domain of this alfworld release is not the known one")
    text = domain.replace(sink, sink[1:])
    return text[: text.index("(:action help")].rstrip() + "\n\n\n)\n"


def engine(root: Path) -> dict[str, str]:
    grammar = (root / "data" / "alfred.twl2").read_text()
    domain = (root / "data" / "alfred.pddl").read_text()
    return {
        "domain_move": domain,
        "domain_put": put_domain(domain),
        "grammar_move": grammar,
        "grammar_put": put_grammar(grammar),
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """One top-level entry per line: small, and a diff stays readable."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
        for key, value in {**provenance(), **content}.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder for the three files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    root = wheel_root()
    constants = load_module(root / "gen" / "constants.py")
    library = load_module(root / "gen" / "goal_library.py")
    write(out / "rooms.json", rooms(root, constants))
    write(out / "facts.json", facts(constants, library))
    write(out / "engine.json", engine(root))


if __name__ == "__main__":
    main()
