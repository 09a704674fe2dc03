from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import serve

from paw_gym.retrieval import RetrieverError, SearchContext, SimulatedRetriever, make_retriever
from paw_gym.retrieval.simulated import Curriculum

CONTEXT = SearchContext("Who made the bell?", ("Ann Lee",), 5)


class Model:
    """A language model that writes what it was asked for."""

    def __init__(self, text: Any = "Doc 1: a\n\nDoc 2: b") -> None:
        self.text = text
        self.prompts: list[str] = []

    def __call__(self, method: str, path: str, payload: Any) -> tuple[int, Any]:
        assert (path, payload["model"]) == ("/v1/chat/completions", "m")
        self.prompts.append(payload["messages"][0]["content"])
        return 200, {"choices": [{"message": {"content": self.text}}]}


def simulated(url: str, **settings: Any) -> SimulatedRetriever:
    return SimulatedRetriever(f"{url}/v1", "m", wait=lambda s: None, **settings)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 10), st.floats(0, 1), st.floats(0, 1))
def test_the_curriculum_rises_from_start_to_end(
    start: float, end: float, base: float, x: float, y: float
) -> None:
    curriculum = Curriculum(start, end, base)
    assert curriculum.noise(0) == pytest.approx(start)
    assert curriculum.noise(1) == curriculum.noise(7) == pytest.approx(end)
    low, high = sorted((x, y))
    assert (curriculum.noise(high) - curriculum.noise(low)) * (end - start) >= -1e-9


def test_a_search_is_answered_by_the_progress_that_it_tells() -> None:
    curriculum = {"end": 1.0}
    retriever, other = (
        make_retriever("simulated", writer="script", curriculum=curriculum, seed=seed)
        for seed in (0, 1)
    )

    def noisy(progress: float | None, asked: Any = retriever) -> list[bool]:
        contexts = [SearchContext(f"Who is {i}?", ("Ann Lee",), i, progress) for i in range(200)]
        found = asked.search([f"q{i}" for i in range(200)], 1, contexts)
        return ["Ann Lee" not in row[0].contents for row in found]

    half = Curriculum(0.0, 1.0).noise(0.5)
    assert [sum(noisy(progress)) for progress in (0.0, 1.0, 0.0)] == [0, 200, 0]
    assert noisy(0.5) == noisy(0.5) != noisy(0.5, other)
    assert sum(noisy(0.5)) / 200 == pytest.approx(half, abs=0.1)
    assert not any(noisy(None))
    modelled = simulated("http://127.0.0.1:9")
    assert len({one.fingerprint for one in (retriever, other, modelled)}) == 3


def test_the_script_needs_no_endpoint() -> None:
    script = make_retriever("simulated", writer="script", curriculum={"end": 0.0})
    hits = script.search(["bell"], 3, [CONTEXT])[0]
    assert len({hit.id for hit in hits}) == 3 and all("Ann Lee" in hit.contents for hit in hits)
    assert all("bell" in hit.contents for hit in script.search(["bell"], 2)[0])  # answer unknown


def test_prompts_tell_the_answer_only_where_they_should() -> None:
    model = Model()
    with serve(model) as url:
        useful = simulated(url, curriculum=Curriculum(0, 0))
        useful.search(["bell"], 2, [CONTEXT])
        simulated(url, curriculum=Curriculum(1, 1)).search(["bell"], 2, [CONTEXT])
        useful.search(["no context"], 1)
    prompts = model.prompts
    assert ["Ann Lee" in prompt for prompt in prompts] == [True, False, False]
    assert all("Who made the bell?" in prompt for prompt in prompts[:2])
    assert "Question: no context" in prompts[2]
    assert ["bad day" in prompt for prompt in prompts] == [False, True, False]
    assert "{" not in "".join(prompts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Doc 1: a\nDoc 2: b\nDoc 3: c", ["a", "b"]),
        ("Sure!\n**Doc 1**: a\nmore of a\n**Doc 2**: b", ["a\nmore of a", "b"]),
        ("document 1 : only one", ["only one"]),
        ("nothing numbered", ["nothing numbered"]),
        ("", []),
        (
            [{"type": "thinking", "thinking": "It is Ann Lee."}, {"type": "text", "text": "a"}],
            ["a"],
        ),
        ("<think>It is Ann Lee.</think>a", ["a"]),
    ],
)
def test_documents_are_found_in_the_response(text: Any, expected: list[str]) -> None:
    with serve(Model(text)) as url:
        hits = simulated(url).search(["q"], 2)[0]
    assert [hit.contents for hit in hits] == expected
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_failures_are_retriever_errors() -> None:
    with (
        serve(lambda *a: (200, {"choices": []})) as url,
        pytest.raises(RetrieverError, match="no answer in the reply"),
    ):
        simulated(url).search(["q"])
    with pytest.raises(ValueError, match="Shares of noise"):
        Curriculum(0, 2)
    with pytest.raises(ValueError, match="needs url and model"):
        make_retriever("simulated")
    with pytest.raises(ValueError, match="Unknown writer 'scrpt'. Did you mean 'script'"):
        make_retriever("simulated", writer="scrpt")
    with pytest.raises(ValueError, match="setting of the curriculum 'ends'. Did you mean 'end'"):
        make_retriever("simulated", writer="script", curriculum={"ends": 1.0})
