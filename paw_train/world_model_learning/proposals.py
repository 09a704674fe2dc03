"""What the start policy itself would do in an expert's states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paw_gym.prompts import PromptTemplate
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import Request, Sampling, response_seed
from paw_train.world_model_learning.early_experience import ExpertState, Proposals


def policy_proposals(
    policy: LocalPolicy,
    template: PromptTemplate,
    alternatives: int,
    sampling: Sampling,
    seed: int,
    limit: int | None = None,
    prefill_tokens: int = 8192,
) -> Proposals:
    """Responses that the policy samples, each action once, the expert's left out.

    Args:
        policy: proposes.
        template: reads the action in a response.
        alternatives: K samples in each state; equal ones leave fewer actions.
        sampling: temperature, limit of tokens, stop texts.
        seed: of sampling; a proposal depends on it, the state's episode and step, and its number alone.
        limit: most tokens of a prompt (``RolloutSettings.max_prompt_tokens``).
        prefill_tokens: most padded context tokens of one forward pass.
    """

    def propose(states: Sequence[ExpertState]) -> list[list[str]]:
        requests = [request for state in states for request in _requests(state)]
        session = policy.session(sampling, False, prefill_tokens)
        texts = [response.text for response in session.respond(requests)]
        parts = [texts[i : i + alternatives] for i in range(0, len(texts), alternatives)]
        return [_different(state, part) for state, part in zip(states, parts, strict=True)]

    def _requests(state: ExpertState) -> Iterator[Request]:
        episode = state.snapshot.episode
        messages = episode.messages(state.step)
        ids = policy.chat.context(messages, episode.instruction, limit)
        for number in range(alternatives):
            name = f"{episode.episode_id}/{state.step}.{number}"
            yield Request(name, response_seed(seed, name, 0), messages, ids)

    def _different(state: ExpertState, texts: Sequence[str]) -> list[str]:
        by_action: dict[str, str] = {}
        for text in texts:
            by_action.setdefault(template.read_response(text).action, text)
        for action in ("", state.expert.action):  # none at all, and the expert's
            by_action.pop(action, None)
        return list(by_action.values())

    return propose
