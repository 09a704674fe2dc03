"""From a page to what the environment answers."""

from __future__ import annotations

from paw_gym.core import Outcome
from paw_gym.envs.webshop.actions import SEARCH_ACTION
from paw_gym.envs.webshop.pages import DonePage, Page


def outcome_of(page: Page, valid: bool) -> Outcome:
    """The outcome of the action that led to a page.

    Args:
        page: what is shown now.
        valid: whether the action was accepted.
    """
    if isinstance(page, DonePage):
        return Outcome(
            page.text(),
            reward=page.score.reward,
            terminated=True,
            success=page.score.reward == 1.0,
            score=page.score.reward,
            action_is_valid=valid,
            admissible_actions=(),
            info={"reward_parts": page.score.parts()},
        )
    return Outcome(
        page.text(),
        score=0.0,
        action_is_valid=valid,
        admissible_actions=admissible_actions(page),
        info={"reward_parts": None},
    )


def admissible_actions(page: Page) -> list[str]:
    """The actions that a page accepts: ``search[...]`` where it shows the field, and every click."""
    actions = [SEARCH_ACTION] if page.has_search_bar else []
    return actions + [f"click[{text}]" for text in page.clickables if text != "search"]
