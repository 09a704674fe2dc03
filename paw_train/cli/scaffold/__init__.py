"""Writes the package of a new environment from the templates in this folder.

A template is a text with ``$slots`` (``string.Template``) in a file ``<path>.tmpl``; ``__package__`` in
a path stands for the package's name.
"""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template

from paw_gym.internals.files import new_folder

_FORM = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SUFFIX = ".tmpl"


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the package of a new environment."""

    distribution: str
    """my-maze"""
    package: str
    """my_maze"""
    title: str
    """MyMaze"""

    @property
    def env_id(self) -> str:
        """my_maze/MyMaze-v0"""
        return f"{self.package}/{self.title}-v0"

    @classmethod
    def of(cls, name: str) -> Names:
        """The names that follow from ``my-maze``, ``my_maze`` or ``MyMaze``."""
        if not _FORM.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a package: use ASCII letters and digits, begin with a letter, "
                "and put single '-' or '_' between words (for example my-maze)."
            )
        words = [word.lower() for word in _WORD.findall(name)]
        package = "_".join(words)
        if keyword.iskeyword(package) or keyword.issoftkeyword(package):
            raise ValueError(f"{package!r} is a word of Python's own. Choose another name.")
        spec = find_spec(package)
        installed = spec is not None and spec.origin is not None
        if package in sys.stdlib_module_names or package == "test" or installed:
            raise ValueError(
                f"There is already a Python module {package!r}, which the new package would hide. "
                "Choose another name."
            )
        return cls("-".join(words), package, "".join(map(str.capitalize, words)))


def write_scaffold(names: Names, into: Path) -> Path:
    """Writes the package and returns its folder; it writes everything or nothing."""
    if not into.is_dir():
        raise FileNotFoundError(f"There is no folder {into} to write the package into.")
    folder = into / names.distribution
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists already, and nothing is overwritten. Remove it, choose another name, "
            "or another place with --into."
        )
    slots = {**asdict(names), "env_id": names.env_id}
    root = Path(str(resources.files("paw_train.cli.scaffold") / "templates"))
    with new_folder(folder) as staging:
        for source in sorted(root.rglob(f"*{_SUFFIX}")):
            path = source.relative_to(root).as_posix().removesuffix(_SUFFIX)
            place = staging / path.replace("__package__", names.package)
            place.parent.mkdir(parents=True, exist_ok=True)
            text = Template(source.read_text(encoding="utf-8")).substitute(slots)
            place.write_text(text, encoding="utf-8")
    return folder
