"""Episodes of any content, for files that are to give them back."""

from __future__ import annotations

from hypothesis import strategies as st

from paw_gym import Episode, Transition

texts = st.text(max_size=30)
hostile_texts = st.text(st.characters(exclude_categories=[]), max_size=12)
"""lone surrogates included"""
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def episodes(draw: st.DrawFn, said: st.SearchStrategy[str] = texts, fewest: int = 0) -> Episode:
    """Up to three steps, with texts from ``said`` and plain ids."""
    env_id, task_id, episode_id = draw(texts), draw(texts), draw(texts)
    transitions = [
        Transition(
            env_id=env_id,
            task_id=task_id,
            episode_id=episode_id,
            step=step,
            prompt=draw(said),
            observation=draw(st.none() | said),
            response=draw(said),
            action=draw(said),
            reward=draw(numbers),
            next_observation=draw(said),
            terminated=draw(st.booleans()),
            truncated=draw(st.booleans()),
            action_is_valid=draw(st.booleans()),
            info=draw(st.dictionaries(said, values | said, max_size=3)),
            parent=draw(st.none() | said),
        )
        for step in range(draw(st.integers(fewest, 3)))
    ]
    return Episode(
        env_id,
        task_id,
        episode_id,
        task_type=draw(said),
        instruction=draw(said),
        group=draw(st.integers(0, 2**40)),
        context_mode=draw(st.sampled_from(["window", "conversation"])),
        transitions=transitions,
        error=draw(st.none() | said),
    )
