"""The domains: policy, tools, database and tasks, each read once per process."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from paw_gym.core import Task, TaskSet, split_of_key
from paw_gym.envs.tau2.conversation import data_folder, from_record, tau2_module, to_package
from paw_gym.generated import shared_sets
from paw_gym.internals.naming import require_choice

DOMAINS = ("airline", "retail", "telecom", "telecom-workflow", "mock")
"""``telecom-workflow`` is telecom with the technical policy as a decision tree"""
_OWN_SPLITS = {"train": 0.6, "test": 0.4}
"""shares for a domain for which the package has no such splits; close to those of the other domains"""


@dataclass(frozen=True, slots=True)
class Domain:
    """A domain: everything that its tasks share."""

    name: str
    policy: str
    tools: Mapping[str, Mapping[str, Any]]
    """the schemas of the agent's tools, by name: ``name``, ``description``, ``parameters``"""
    user_tools: Mapping[str, Mapping[str, Any]]
    """the same for what the user can do with a phone (telecom)"""
    new_world: Callable[[], Any]
    """a fresh environment of the package, with databases of its own"""


@lru_cache(maxsize=len(DOMAINS))
def load_domain(name: str) -> Domain:
    require_choice("domain", name, DOMAINS)
    module = tau2_module(f"domains.{_folder(name)}.environment")
    workflow = name == "telecom-workflow"
    original = module.get_environment_workflow_policy() if workflow else module.get_environment()
    return Domain(
        name,
        original.policy,
        _schemas(original.tools),
        _schemas(original.user_tools),
        partial(_new_world, original, _own_kind(original.tools)),
    )


def _folder(name: str) -> str:
    return name.partition("-")[0]


def _schemas(toolkit: Any) -> dict[str, dict[str, Any]]:
    if toolkit is None:
        return {}
    tools = toolkit.get_tools()
    return {name: tools[name].openai_schema["function"] for name in sorted(tools)}


def _new_world(original: Any, kind: Any) -> Any:
    tools = kind(copy_database(original.tools.db))
    arguments = [original.domain_name, original.policy, tools]
    if original.user_tools is not None:
        arguments.append(type(original.user_tools)(copy_database(original.user_tools.db)))
    return type(original)(*arguments)


def _own_kind(toolkit: Any) -> Any:
    """The class of the agent's tools: quick to hash and to read, and without random bill numbers."""
    kind: Any = type(toolkit)
    own: dict[str, Any] = {
        "get_db_hash": lambda self: database_hash(self.db),
        "use_tool": _without_copies(kind),
    }
    if hasattr(kind, "_apply_one_time_charge"):
        own["_apply_one_time_charge"] = _repeatable_charge(kind)
    return type(kind)(kind.__name__, (kind,), own)


def _without_copies(kind: Any) -> Callable[..., Any]:
    """``use_tool`` in which tools that only read (a search goes through all flights) copy no rows."""
    read = tau2_module("environment.toolkit").ToolType.READ

    def use_tool(self: Any, tool_name: str, **kwargs: Any) -> Any:
        tables = [table for table in vars(self.db).values() if isinstance(table, SharedTable)]
        for table in tables:
            table.reading = self.has_tool(tool_name) and self.tool_type(tool_name) is read
        try:
            return kind.use_tool(self, tool_name, **kwargs)
        finally:
            for table in tables:
                table.reading = False

    return use_tool


def _repeatable_charge(kind: Any) -> Callable[..., Any]:
    """Telecom's charge, whose bills get a number that follows from the customer and the existing bills."""

    def charge(self: Any, customer_id: str, *args: Any, **kwargs: Any) -> Any:
        before = {bill.bill_id for bill in self.db.bills}
        result = kind._apply_one_time_charge(self, customer_id, *args, **kwargs)
        for bill in self.db.bills:
            if bill.bill_id not in before:
                number = hashlib.sha256(f"{customer_id}/{len(before)}".encode()).hexdigest()[:8]
                listed = self.get_customer_by_id(customer_id).bill_ids
                listed[listed.index(bill.bill_id)] = bill.bill_id = f"B{number}"
        return result

    return charge


# --- tasks ---------------------------------------------------------------------------------------


@shared_sets(maxsize=32)
def domain_tasks(name: str, split: str) -> TaskSet:
    """The tasks of a split; ``data`` of a task is its record in the package."""
    require_choice("domain", name, DOMAINS)
    records = _records(_folder(name))
    splits = _splits(name)
    require_choice(f"{name} split", split, splits)
    ids = list(splits[split])
    digest = hashlib.sha256("\n".join([name, _data_hash(_folder(name)), *ids]).encode())

    def load(task_id: str) -> Task:
        record = records[task_id.partition("/")[2]]
        # the kind of trouble in telecom (``mms_issue``); elsewhere the domain
        issue, bracket, _ = str(record["id"]).removeprefix("[").partition("]")
        return Task(task_id, instruction(name), issue if bracket else name, record)

    return TaskSet(ids, load, digest.hexdigest(), split)


@lru_cache(maxsize=4)
def _records(folder: str) -> Mapping[str, Mapping[str, Any]]:
    path = data_folder() / "domains" / folder / "tasks.json"
    listed = json.loads(path.read_text(encoding="utf-8"))
    return {str(record["id"]): record for record in listed}


@lru_cache(maxsize=len(DOMAINS))
def _splits(name: str) -> Mapping[str, Sequence[str]]:
    """Ids of each split, in the order of the task file."""
    folder = _folder(name)
    path = data_folder() / "domains" / folder / "split_tasks.json"
    published = json.loads(path.read_text(encoding="utf-8"))
    order = [f"{name}/{task_id}" for task_id in _records(folder)]
    splits = {}
    for split, members in published.items():
        kept = {f"{name}/{member}" for member in members}
        splits[split] = [task_id for task_id in order if task_id in kept]
    if "train" not in splits:
        for split in _OWN_SPLITS:
            splits[split] = [i for i in splits["base"] if split_of_key(i, _OWN_SPLITS) == split]
    return splits


@lru_cache(maxsize=4)
def _data_hash(folder: str) -> str:
    """A hash of the tasks, the databases and the policies."""
    digest = hashlib.sha256()
    for path in sorted((data_folder() / "domains" / folder).iterdir()):
        if path.suffix in (".json", ".toml", ".md"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=len(DOMAINS))
def instruction(name: str) -> str:
    """The instruction of every task: the agent's part, the policy, and the tools, not what the user wants."""
    domain = load_domain(name)
    tools = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in domain.tools.values())
    return (
        "You serve a customer in a conversation. Find out what the customer needs, and handle it "
        "with the tools, strictly by the policy.\n\n"
        f"<policy>\n{domain.policy.strip()}\n</policy>\n\n<tools>\n{tools}\n</tools>"
    )


# --- a task's state of the world -------------------------------------------------------------------


def package_task(record: Mapping[str, Any]) -> Any:
    """The package's own object for a task."""
    return tau2_module("data_model.tasks").Task.model_validate(record)


def history(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that a task begins with; mostly none."""
    state = record.get("initial_state") or {}
    return [
        from_record(message) | {"given": True} for message in state.get("message_history") or []
    ]


def world_after(domain: Domain, task: Any, messages: Sequence[Mapping[str, Any]]) -> Any:
    """The package's environment as it is after the tool calls of ``messages``."""
    world = domain.new_world()
    initial = task.initial_state
    world.set_state(
        initial.initialization_data if initial else None,
        initial.initialization_actions if initial else None,
        to_package([dict(message) for message in messages]),
    )
    return world


# --- quick private copies of a database ----------------------------------------------------------


class SharedTable(dict[str, Any]):
    """A dictionary of rows that belong to another one; a row that is read becomes a private copy.

    The airline's database has 2,800 rows in 7 MB of JSON, and an episode touches a dozen.
    Code that bypasses a dictionary's methods (pydantic's serialiser, ``json``) sees the rows as they
    are, which is right: a shared row was never changed.
    """

    reading = False
    """true while no row is changed, so that none has to be copied"""

    def __init__(self, rows: dict[str, Any]) -> None:
        super().__init__(rows)
        self._original = rows

    def changes(self) -> dict[str, str | None]:
        """The rows that differ from the original's, as JSON; ``None`` for one that is gone."""
        found: dict[str, str | None] = dict.fromkeys(self._original.keys() - self.keys())
        for key, row in super().items():
            old = self._original.get(key)
            if row is not old and (old is None or _as_json(row) != _as_json(old)):
                found[key] = _as_json(row)
        return found

    def __iter__(self) -> Iterator[str]:
        # with an iterator of its own, copy(), | and dict() read by __getitem__, not past it
        return super().__iter__()

    def __getitem__(self, key: str) -> Any:
        row = super().__getitem__(key)
        if not self.reading and row is self._original.get(key):
            row = self[key] = copy.deepcopy(row)
        return row

    # row by row, so that each is a private copy
    get = MutableMapping.get  # type: ignore[assignment]
    setdefault = MutableMapping.setdefault
    values = MutableMapping.values  # type: ignore[assignment]
    items = MutableMapping.items  # type: ignore[assignment]

    def pop(self, key: str, *default: Any) -> Any:
        return copy.deepcopy(super().pop(key, *default))

    def popitem(self) -> tuple[str, Any]:
        key, row = super().popitem()
        return key, copy.deepcopy(row)


def _as_json(row: Any) -> str:
    return json.dumps(row.model_dump(), sort_keys=True, default=str)


def database_hash(database: Any) -> str:
    """A hash that two copies of one original (``copy_database``) share if and only if they hold the same. It
    looks only at the rows that were touched; the package hashes all of a database."""
    parts = {
        name: value.changes()
        if isinstance(value, SharedTable)
        else database.model_dump(include={name})
        for name, value in vars(database).items()
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def copy_database(database: Any) -> Any:
    """A database (a pydantic model of tables) that can be changed without changing ``database``."""
    own = {
        name: SharedTable(value)
        if isinstance(value, dict) and all(hasattr(row, "model_dump") for row in value.values())
        else copy.deepcopy(value)
        for name, value in vars(database).items()
    }
    return database.model_copy(update=own)
