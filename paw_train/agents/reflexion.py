"""Reflexion: after a failed trial the model writes down what went wrong, and tries again with its notes.

Source: Shinn et al., arXiv 2303.11366. A trial is an episode of ``react``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paw_gym.internals.replies import split_thought
from paw_gym.pool import EnvPool
from paw_gym.prompts import fill
from paw_gym.transition import Episode
from paw_train.agents.dialogue import ShorteningPolicy
from paw_train.agents.examples import CHARACTERS_A_TOKEN, shortened
from paw_train.agents.metering import REFLECTION
from paw_train.agents.protocol import AGENTS, Done, note, run_turns
from paw_train.agents.react import ReactAgent, ReactSettings
from paw_train.rollouts.policy import Request, response_seed
from paw_train.settings.base import Count, Positive

REFLECT = """\
You have just tried to solve a task in a text environment, and it did not succeed. Look through what \
happened and write a note to yourself for the next try at the same task: where it probably went wrong, \
and what exactly you will do differently. Write at most four sentences and nothing else.

Task: {task}
{earlier}
What happened:
{transcript}"""
EARLIER = "\nNotes from the tries before:\n{notes}\n"


class ReflexionSettings(ReactSettings):
    """Settings of ``reflexion``: those of ``react``, and more."""

    trials: Positive = 3
    """tries at a task, the first included"""
    memory: Count = 3
    """notes that are kept, the latest ones"""
    reflection_tokens: Positive = 256
    """longest note"""
    transcript_tokens: int = 2000
    """of the failed trial that the model looks through, at four characters a token"""


@AGENTS.register("reflexion")
class ReflexionAgent(ReactAgent):
    """Tries a task as ReAct does, each time from its start, until it succeeds or trials are used up.

    Between trials it learns whether it succeeded, which agents with one trial do not, and notes what went
    wrong. The episode that counts is the first that succeeds, else the last.
    """

    name = "reflexion"
    Settings = ReflexionSettings
    privileged = "success"

    def prompts(self) -> list[str]:
        """Those of a trial, and how the model is asked to reflect."""
        return [*super().prompts(), REFLECT, EARLIER]

    def run(self, pool: EnvPool, task_ids: Sequence[str], seed: int, done: Done) -> None:
        notes: dict[str, list[str]] = {task_id: [] for task_id in task_ids}
        left = list(task_ids)
        for trial in range(1, self.settings.trials + 1):
            failed: list[Episode] = []
            responder = self.responder(response_seed(seed, "trial", trial), self._kept(notes))

            def over(episode: Episode, trial: int = trial, failed: list[Episode] = failed) -> None:
                if trial == self.settings.trials or episode.success or episode.error is not None:
                    note(episode, trial=trial, reflections=list(notes[episode.task_id]))
                    done(episode)
                else:
                    failed.append(episode)

            run_turns(pool, left, responder, over)
            by_task = {episode.task_id: episode for episode in failed}
            left = self._reflect([by_task[i] for i in left if i in by_task], notes, seed, done)
            if not left:
                break

    def _kept(self, notes: dict[str, list[str]]) -> dict[str, list[str]]:
        count = self.settings.memory
        return {task_id: texts[-count:] if count else [] for task_id, texts in notes.items()}

    def _reflect(
        self, failed: Sequence[Episode], notes: dict[str, list[str]], seed: int, done: Done
    ) -> list[str]:
        """Adds a note for each failed task; returns those to try again, in order."""
        if not failed:
            return []
        sampling = replace(
            self.rollout.sampling(()), max_tokens=int(self.settings.reflection_tokens)
        )
        requests = []
        for episode in failed:
            kept = self._kept(notes)[episode.task_id]
            message = {"role": "user", "content": self.reflection_prompt(episode, kept)}
            name = f"{episode.episode_id}{REFLECTION}"
            number = response_seed(seed, name, len(notes[episode.task_id]))
            requests.append(Request(name, number, [message]))
        tasks = {f"{e.episode_id}{REFLECTION}": e.instruction for e in failed}
        policy = ShorteningPolicy(self.policy, self.rollout, tasks.__getitem__)
        responses = policy.session(sampling, False).respond(requests)
        again = []
        for episode, response in zip(failed, responses, strict=True):
            if response.error is not None:
                episode.error = response.error
                done(episode)
                continue
            notes[episode.task_id].append(" ".join(split_thought(response.text)[1].split()))
            again.append(episode.task_id)
        return again

    def reflection_prompt(self, episode: Episode, notes: Sequence[str]) -> str:
        """The request for a note after a failed trial."""
        earlier = fill(EARLIER, notes="\n".join(f"- {n}" for n in notes)) if notes else ""
        lines = []
        for t in episode.transitions:
            lines.append(f"You: {t.response.strip()}")
            seen = shortened(t.next_observation, self.settings.observation_chars)
            lines.append(f"Environment: {seen}")
        limit = int(self.settings.transcript_tokens) * CHARACTERS_A_TOKEN
        transcript = shortened("\n".join(lines), limit)
        return fill(REFLECT, task=episode.instruction, earlier=earlier, transcript=transcript)
