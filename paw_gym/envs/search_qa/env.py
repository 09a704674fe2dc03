"""The Search QA environment: questions, a search engine, an answer."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from paw_gym.core import AgentDefaults, Outcome, Task, TextEnv
from paw_gym.envs.search_qa.questions import DOMAINS, Question, benchmark_tasks, dataset_names
from paw_gym.envs.search_qa.scoring import Scores, score
from paw_gym.envs.search_qa.synthetic import Riddle, synthetic_tasks, world_corpus
from paw_gym.generated import require_count
from paw_gym.internals.files import file_at, file_version, user_path
from paw_gym.internals.naming import require_choice
from paw_gym.retrieval.base import (
    Passage,
    Retriever,
    RetrieverError,
    SearchContext,
    check_top_k,
    wants_contexts,
)
from paw_gym.retrieval.corpus import Corpus
from paw_gym.retrieval.dense import require_small
from paw_gym.retrieval.factory import make_retriever, needs_corpus, require_retriever


def information(passages: Sequence[Passage]) -> str:
    """The passages that were found, numbered."""
    titled = [f"(Title: {p.title}) {p.text}" if p.title else p.text for p in passages]
    lines = [f"Doc {number} {text}" for number, text in enumerate(titled, start=1)]
    return _inside("\n".join(lines) or "No passage matches this query.")


def _inside(text: str) -> str:
    return f"<information>\n{text}\n</information>"


UNREACHABLE = _inside("The search engine did not answer. You may search again or answer.")
"""after a search that failed"""
RECORDED = "The answer is recorded."
"""after an answer: it does not show whether the answer is right"""


_SHARED: dict[str, Retriever] = {}
"""by name, corpus and settings; 128 environments must not hold 128 indices"""
_LOCK = threading.Lock()


def find_corpus(data_dir: Path, datasets: Sequence[str], corpus: str | Path | None) -> Path:
    """The corpus file: as given, or ``corpus.jsonl`` beside the questions, or above them."""
    if corpus is not None:
        return user_path(corpus)
    folders = [data_dir / datasets[0]] if len(datasets) == 1 else []
    for folder in (*folders, data_dir):
        if (folder / "corpus.jsonl").is_file():
            return folder / "corpus.jsonl"
    raise FileNotFoundError(
        f"There is no corpus.jsonl in {data_dir}: put the passages to search there, or give "
        "corpus=PATH, or the address of a retrieval server as the retriever."
    )


def shared_retriever(
    retriever: str | Retriever, corpus: Callable[[], Path | Corpus], settings: Mapping[str, Any]
) -> Retriever:
    """The retriever of that name over that corpus, made when it is first asked for."""
    if not isinstance(retriever, str):
        return make_retriever(retriever)
    chosen = dict(settings)
    if needs_corpus(retriever) and "corpus" not in chosen:
        chosen["corpus"] = corpus()
    key = repr([retriever, sorted((name, _identity(value)) for name, value in chosen.items())])
    with _LOCK:
        if key not in _SHARED:
            _SHARED[key] = make_retriever(retriever, **chosen)
        return _SHARED[key]


def _identity(value: Any) -> str:
    """The identity of a setting's value; a file or an index counts as another one once it has changed."""
    if isinstance(value, Corpus):
        return value.fingerprint
    file = None
    if isinstance(value, str | os.PathLike):  # or other text, such as a token
        file = file_at(value) or file_at(user_path(value) / "index.json")
    return repr(value) if file is None else file_version(file)


REWARDS = ("exact_match", "f1")
MAX_QUERY = 1_000
"""characters; a longer query is refused, and no search engine has to cope with it"""
_ACTION = re.compile(r"\s*<(search|answer)>(.*)</\1>\s*", re.DOTALL)
_log = logging.getLogger(__name__)


class SearchQAEnv(TextEnv):
    """Questions that are answered with a search engine, on a made-up encyclopedia or seven benchmarks.

    ## Description
    The setting of Search-R1 (Jin et al. 2025). The agent searches a corpus of passages as often as
    its turns allow, then gives a short answer. Without ``data_dir`` the encyclopedia is made up from a
    seed (``dataset="synthetic"``): nothing to download, nothing a model could know by heart. With
    ``data_dir`` the questions are those of NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultihopQA, MuSiQue,
    Bamboogle, or any file of the same form.

    ## Action Space
    ``<search>a query</search>`` or ``<answer>a short answer</answer>``; anything else is invalid.

    ## Observation Space
    At first the question; after a search the ``top_k`` best passages inside ``<information>``.

    ## Rewards
    1 for an answer that matches a golden answer exactly (after SQuAD's normalisation), else 0; with
    ``reward="f1"`` the F1 of the answer's words. Behind ``AgentInterface``: -0.01 for an invalid
    response.

    ## Starting State
    A question. ``seed`` or ``options`` choose it.

    ## Episode End
    Terminated by an answer, right or wrong; truncated after ``max_steps`` (4) turns.

    ## Info
    ``exact_match``, ``f1``, ``contains`` (of the answer), ``retrieved`` (ids of the passages just
    found), ``retrieval_failed`` (True once the search engine has failed to answer a search)
    and ``retrieval_error`` (why, in that step).

    ## Arguments
    ``dataset``: ``synthetic``, a benchmark (``nq``, ``hotpotqa``, ...), several (``nq+hotpotqa``, a
    list, ``train_mix``, ``all``), or any folder below ``data_dir``. ``split``: such as ``train`` or
    ``dev``. ``data_dir``: the folder that holds ``<dataset>/<split>.jsonl`` and ``corpus.jsonl``.
    ``retriever``: ``bm25``, ``lucene``, ``e5``, ``hybrid``, ``simulated``, the address of a retrieval
    server, or a ``Retriever``. ``top_k``: passages a search shows. ``corpus``: path of the corpus, if it
    is elsewhere. ``retriever_settings``: more arguments of the retriever, such as ``index``.
    ``reward``: ``exact_match`` or ``f1``. Synthetic only: ``difficulty`` (``easy``: one hop,
    ``medium``: one or two, ``hard``: two or three, with aliases and distractors, ``mixed``: one to
    three), ``num_questions``, ``num_passages``, ``world_seed``.
    """

    agent = AgentDefaults(template="search", history_length=None, invalid_penalty=-0.01)
    held_out_splits = ("dev", "test")
    small_template = "search_compact"
    recorded_info = ("exact_match", "f1", "contains", "retrieved", "retrieval_failed")
    type_groups = DOMAINS

    def __init__(
        self,
        dataset: str | Sequence[str] = "synthetic",
        split: str = "dev",
        data_dir: str | Path | None = None,
        retriever: str | Retriever = "bm25",
        top_k: int = 3,
        max_steps: int = 4,
        corpus: str | Path | None = None,
        retriever_settings: dict[str, Any] | None = None,
        reward: str = "exact_match",
        difficulty: str = "medium",
        num_questions: int | None = None,
        num_passages: int = 1200,
        world_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        check_top_k(top_k)
        require_choice("reward", reward, REWARDS)
        require_count("num_questions", num_questions)
        if isinstance(retriever, str):
            require_retriever(retriever)
        names = dataset_names(dataset)
        of: Callable[[], Path | Corpus]
        if data_dir is None and names == ("synthetic",):
            if corpus is not None:
                raise ValueError(
                    f"corpus={str(corpus)!r} goes nowhere: dataset='synthetic' writes the passages that its "
                    "questions are about. Choose the data set that the corpus is for, or leave corpus out."
                )
            world = (world_seed, difficulty, num_passages)
            tasks = synthetic_tasks(split, *world, num_questions)
            of = partial(world_corpus, *world)
        else:
            if retriever == "e5" and corpus and not (retriever_settings or {}).get("index"):
                require_small(corpus)
            if data_dir is None:
                raise ValueError(
                    f"dataset={dataset!r} needs data_dir, the folder that holds <dataset>/<split>.jsonl "
                    "and corpus.jsonl. Only dataset='synthetic' comes without data."
                )
            folder = user_path(data_dir)
            tasks = benchmark_tasks(names, split, folder)
            if num_questions is not None and num_questions < len(tasks):
                tasks = tasks.subset(set(tasks.ids[:num_questions]).__contains__)
            of = partial(find_corpus, folder, names, corpus)
        self._open = partial(shared_retriever, retriever, of, retriever_settings or {})
        super().__init__(tasks, max_steps, render_mode)
        self.top_k = top_k
        self.reward = reward

    @property
    def nondeterministic(self) -> bool:
        """True if the same actions may lead elsewhere: if a language model writes what a search finds."""
        return wants_contexts(self._open())

    # --- playing -------------------------------------------------------------------------------

    def _start(self, task: Task) -> Outcome:
        self._open()  # a missing corpus is reported now, not in the middle of an episode
        self.state = {
            "seed": int(self.np_random.integers(2**31)),
            "seen": [],
            "failed": False,
            "turns": 0,
        }
        return self._outcome(f"Question: {task.instruction}")

    def _act(self, action: str) -> Outcome:
        self.state["turns"] += 1
        match = _ACTION.fullmatch(action)
        if match is None:
            return self._invalid("it has neither <search> nor <answer> around it")
        tag, text = match.group(1), match.group(2).strip()
        if not text:
            return self._invalid(f"<{tag}> is empty")
        if tag == "search":
            return self._search(text)
        scores = score(text, self.question.golden_answers)
        return self._outcome(RECORDED, scores=scores, terminated=True)

    def _invalid(self, reason: str) -> Outcome:
        text = (
            f"This is no valid action: {reason}. Write <search>your query</search> to search, or "
            "<answer>your answer</answer> to answer."
        )
        return self._outcome(text, action_is_valid=False)

    def _search(self, query: str) -> Outcome:
        if len(query) > MAX_QUERY:
            return self._invalid(f"the query is longer than {MAX_QUERY} characters")
        question = self.question
        context = SearchContext(
            question.question, question.golden_answers, self.state["seed"], self.progress
        )
        try:
            hits = self._open().search([query], self.top_k, [context])[0]
        except RetrieverError as error:
            _log.warning("A search failed in task %s: %s", self.task.id, error)
            self.state["failed"] = True
            return self._outcome(UNREACHABLE, error=str(error))
        self.state["seen"] += [hit.id for hit in hits if hit.id not in self.state["seen"]]
        return self._outcome(information(hits), retrieved=[hit.id for hit in hits])

    def _outcome(
        self,
        observation: str,
        scores: Scores | None = None,
        terminated: bool = False,
        action_is_valid: bool = True,
        retrieved: Sequence[str] = (),
        error: str | None = None,
    ) -> Outcome:
        scores = scores or Scores()
        return Outcome(
            observation,
            reward=float(getattr(scores, self.reward)),
            terminated=terminated,
            success=scores.exact_match,
            action_is_valid=action_is_valid,
            info={
                **asdict(scores),
                "retrieved": list(retrieved),
                "retrieval_failed": self.state["failed"],
                "retrieval_error": error,
            },
        )

    @property
    def question(self) -> Question:
        """The question being played, with its golden answers."""
        data = self.task.data
        return data.question if isinstance(data, Riddle) else data

    def prompt_observation(self, observation: str) -> str:
        """Nothing at first: the prompt has a slot of its own for the question."""
        return "" if observation == f"Question: {self.task.instruction}" else observation

    # --- reference -----------------------------------------------------------------------------

    def reference_solution(self) -> list[str]:
        """A golden answer, after the searches along the chain if the question is synthetic."""
        searches = [f"<search>{hop.query}</search>" for hop in self._missing()]
        left = max(self.max_steps - self.state["turns"] - 1, 0)
        return [*searches[:left], f"<answer>{self.question.golden_answers[0]}</answer>"]

    def _missing(self) -> list[Any]:
        """Hops whose passage has not been shown yet."""
        data = self.task.data
        hops = data.hops if isinstance(data, Riddle) else ()
        return [hop for hop in hops if hop.passage not in self.state["seen"]]

    def expert(self) -> Callable[[], str]:
        """Searches for each hop until its passage has been shown, then answers; it claims nothing unseen.

        A hop's query names the entity that the hop before revealed, so each action follows from what
        the agent can read. If the passages do not turn up in time, it answers that it does not know.
        """

        def act() -> str:
            missing = self._missing()
            if not missing:
                return f"<answer>{self.question.golden_answers[0]}</answer>"
            if self.state["turns"] + 1 < self.max_steps:
                return f"<search>{missing[0].query}</search>"
            return "<answer>unknown</answer>"

        return act
