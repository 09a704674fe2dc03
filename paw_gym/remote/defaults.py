"""What the class of an environment says here, and only its gateway can say of one that runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paw_gym.core import AgentDefaults, TextEnv
from paw_gym.prompts import PromptTemplate, builtin_templates
from paw_gym.remote.errors import RemoteError


@dataclass(frozen=True)
class EnvDefaults:
    """Defaults of an environment behind a gateway, under the names that ``TextEnv`` has for them.

    An older gateway does not say all of them; then they are those of ``TextEnv``.
    """

    agent: AgentDefaults
    held_out_splits: tuple[str, str] = TextEnv.held_out_splits
    small_template: str = TextEnv.small_template
    type_groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    has_splits: bool = True
    """whether it is made with a ``split``"""

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> EnvDefaults:
        """The defaults that a gateway's description of an environment holds.

        Raises:
            RemoteError: it names a prompt template that is unknown here.
        """
        found = {name: described[name] for name in _AS_THEY_ARE if name in described}
        if found.get("small_template") not in builtin_templates():
            found.pop("small_template", None)  # it must not be taken for a path on this machine
        if "held_out_splits" in described:
            selection, held_out = described["held_out_splits"]
            found["held_out_splits"] = (selection, held_out)
        if "type_groups" in described:
            groups = described["type_groups"]
            found["type_groups"] = {name: tuple(types) for name, types in groups.items()}
        return cls(_agent(described["agent"]), **found)


_AS_THEY_ARE = ("small_template", "has_splits")


def _agent(described: Mapping[str, Any]) -> AgentDefaults:
    fields = dict(described)
    text, name = fields.pop("template_text"), fields["template"]
    if text is not None:
        fields["template"] = PromptTemplate.parse(text, "remote")
    elif name not in builtin_templates():  # it must not be taken for a path on this machine
        raise RemoteError(f"The gateway names a prompt template that is unknown here: {name!r}.")
    return AgentDefaults(**fields)
