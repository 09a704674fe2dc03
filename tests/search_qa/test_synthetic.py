from __future__ import annotations

import random

import pytest
from playing import play

from paw_gym.envs.search_qa.synthetic import DIFFICULTIES, SPLITS, Entity, World
from paw_gym.registration import make_text_env

SIZE = 400


@pytest.fixture(scope="module", params=sorted(DIFFICULTIES))
def difficulty(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(difficulty: str, split: str = "dev", **kwargs: object) -> object:
    kwargs = {"num_passages": SIZE, **kwargs}
    env = make_text_env("paw_gym/SearchQA-v0", difficulty=difficulty, split=split, **kwargs)
    return env.unwrapped


def test_the_oracle_answers_everything(difficulty: str) -> None:
    for split in SPLITS:
        env = make(difficulty, split, num_questions=40)
        for number in range(len(env.tasks)):
            env.reset(seed=number, options={"task_index": number})
            _, reward, terminated, _, info = play(env, env.reference_solution())[-1]
            assert terminated and info["success"] and reward == 1.0


def test_the_expert_acts_on_what_can_be_read(difficulty: str) -> None:
    """Each name it searches for, and its answer, stood in the question or in a passage before."""
    env = make(difficulty, num_questions=60)
    solved = 0
    for number in range(len(env.tasks)):
        read, info = env.reset(seed=0, options={"task_index": number})
        expert, over = env.expert(), False
        while not over:
            action = expert()
            words = action.partition(">")[2].partition("<")[0].split()
            if action.startswith("<search>"):
                words = [word for word in words if word[0].isupper()]
            if words != ["unknown"]:
                assert set(words) <= set(
                    read.replace("?", " ").replace(".", " ").replace(",", " ").split()
                ), action
            observation, _, terminated, truncated, info = env.step(action)
            read, over = f"{read} {observation}", terminated or truncated
        solved += info["success"]
    assert solved >= 0.9 * len(env.tasks)


def test_guessing_does_not_exceed_chance() -> None:
    """Searching at random and answering with a random name."""
    env = make("medium", num_passages=1200)
    rng, right, guesses = random.Random(0), 0, 600
    names = [f"{p.title}" for p in env._open().corpus]
    for number in range(guesses):
        env.reset(seed=number)
        env.step(f"<search>{rng.choice(names)}</search>")
        right += env.step(f"<answer>{rng.choice(names)}</answer>")[4]["success"]
    assert right / guesses <= 0.01


def test_splits_share_no_entity(difficulty: str) -> None:
    world = World(3, difficulty, SIZE)
    by_passage = {e.passage: e for e in world.entities}
    asked = {}
    for split in SPLITS:
        riddles = world.riddles(split)
        relations = [len(r.question.supporting) for r in riddles]
        assert relations == [int(r.question.type[0]) for r in riddles]
        assert len({r.question.id for r in riddles}) == len(riddles) > 20
        assert {len(r.hops) for r in riddles} == set(DIFFICULTIES[difficulty].hops)
        for riddle in riddles:
            assert all(by_passage[hop.passage].split == split for hop in riddle.hops)
            assert len({hop.passage for hop in riddle.hops}) == len(riddle.hops)
        asked[split] = {r.question.question for r in riddles}
    assert not asked["train"] & asked["dev"] and not asked["dev"] & asked["test"]


def test_gold_passages_state_the_facts(difficulty: str) -> None:
    world = World(1, difficulty, SIZE)
    texts = {p.id: p for p in world.passages}
    for riddle in world.riddles("test", 50):
        last = texts[riddle.hops[-1].passage]
        assert riddle.question.golden_answers[0] in last.text
        assert riddle.question.supporting == tuple(texts[h.passage].title for h in riddle.hops)
        for hop, following in zip(riddle.hops, riddle.hops[1:], strict=False):
            assert texts[following.passage].title in texts[hop.passage].text
    for entity in world.entities:
        assert entity.alias in texts[entity.passage].text
        for value in entity.facts.values():
            name = value.name if isinstance(value, Entity) else value
            assert name in texts[entity.passage].text


def test_held_out_names_hold_hardly_a_new_word() -> None:
    world = World(2, "medium", 1200)
    seen = {w for e in world.entities if e.split == "train" for w in f"{e.name} {e.alias}".split()}
    held_out = [w for e in world.entities if e.split != "train" for w in e.name.split()]
    assert sum(word in seen for word in held_out) >= 0.97 * len(held_out)


def test_everything_follows_from_the_seed(difficulty: str) -> None:
    one, same, other = (World(seed, difficulty, SIZE) for seed in (5, 5, 6))
    assert one.passages == same.passages and one.riddles("dev") == same.riddles("dev")
    assert one.passages != other.passages
    assert one.riddles("dev", 10) == one.riddles("dev")[:10]
