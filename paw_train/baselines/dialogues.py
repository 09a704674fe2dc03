"""The dialogues of one batch of episodes with a policy, each no longer than the model can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paw_train.baselines.dialogue import Dialogue
from paw_train.rollouts.policy import Policy, Request, Response, Sampling, Session
from paw_train.settings.rollout import RolloutSettings

_SHARES = (1.0, 0.8, 0.6)
"""of a context limit that is tried in turn, since tokens may have been counted too few"""


class Dialogues:
    """Dialogues by the episode's name.

    Args:
        policy: answers.
        rollout: sampling, and the limits of contexts and responses.
    """

    def __init__(self, policy: Policy, rollout: RolloutSettings) -> None:
        self.policy, self.rollout = policy, rollout
        self._dialogues: dict[str, Dialogue] = {}
        self._growing: Session | None = None

    def __contains__(self, episode: object) -> bool:
        return episode in self._dialogues

    def __getitem__(self, episode: str) -> Dialogue:
        return self._dialogues[episode]

    def hear(self, episode: str, message: str) -> None:
        """Appends a message to an episode's dialogue, or begins it; old turns are forgotten if need be."""
        dialogue = self._dialogues.get(episode)
        if dialogue is None:
            count = getattr(self.policy, "count_tokens", None)
            dialogue = self._dialogues[episode] = Dialogue(self.policy.chat, message, count)
        else:
            dialogue.hear(message)
        known = getattr(self.policy, "context_tokens", None)
        limit = min(self.rollout.max_context_tokens, known or self.rollout.max_context_tokens)
        dialogue.fit(limit - self.rollout.max_response_tokens)

    def ask(self, seeds: Mapping[str, int], sampling: Sampling) -> list[Response]:
        """One response in each dialogue that is named.

        Args:
            seeds: of each response, by episode. Episodes may leave from one call to the next.
            sampling: of all responses; the same in every call.
        """
        responses = self._respond([self._request(name, seeds[name]) for name in seeds], sampling)
        for share in _SHARES:
            limit = getattr(self.policy, "context_tokens", None)
            long = [name for name, r in zip(seeds, responses, strict=True) if r.overflow]
            if not long or limit is None:
                break
            for name in long:
                self._dialogues[name].fit(int(limit * share) - self.rollout.max_response_tokens)
            again = self._respond([self._request(name, seeds[name]) for name in long], sampling)
            found = dict(zip(long, again, strict=True))
            responses = [found.get(n, r) for n, r in zip(seeds, responses, strict=True)]
        return responses

    def _request(self, episode: str, seed: int) -> Request:
        dialogue = self._dialogues[episode]
        return Request(episode, seed, dialogue.messages, dialogue.ids)

    def _respond(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """Whole dialogues share a session that keeps its work; one that has forgotten turns leaves it."""
        whole = [r for r in requests if not self._dialogues[r.episode].forgotten]
        cut = [r for r in requests if self._dialogues[r.episode].forgotten]
        prefill = self.rollout.prefill_tokens
        given: dict[str, Response] = {}
        if whole:
            self._growing = self._growing or self.policy.session(sampling, True, prefill)
            given |= zip((r.episode for r in whole), self._growing.respond(whole), strict=True)
        if cut:
            session = self.policy.session(sampling, False, prefill)
            given |= zip((r.episode for r in cut), session.respond(cut), strict=True)
        return [given[request.episode] for request in requests]
