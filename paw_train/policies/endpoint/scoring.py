"""Log-probabilities of given responses, from an endpoint that echoes prompts.

``/completions`` with ``echo`` and ``logprobs`` gives the log-probability of every token of a prompt
(OpenAI's older models, vLLM); vLLM's ``prompt_logprobs`` is read as well. Contexts are sent as tokens, so
it is known which of them are a continuation's. All continuations of a step go in one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paw_train.policies.endpoint.retry import EndpointError
from paw_train.rollouts.policy import ScoreRequest, Scores

if TYPE_CHECKING:
    from paw_train.policies.endpoint.policy import EndpointPolicy


class EndpointScoring:
    """An endpoint that scores; it keeps nothing, contexts are sent whole."""

    def __init__(self, policy: EndpointPolicy) -> None:
        self.policy = policy

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """See ``ScoringSession``."""
        return self.policy.score(requests)


def scoring_body(model: str, request: ScoreRequest, limit_field: str) -> dict[str, Any]:
    """The body of a scoring request.

    Args:
        model: its name at the server.
        request: the context and its continuations.
        limit_field: the field that limits a response; servers refuse 0, so one token is written.
    """
    prompts = [[*request.ids, *continuation] for continuation in request.continuations]
    return {
        "model": model,
        "prompt": prompts,
        limit_field: 1,
        "temperature": 0.0,
        "echo": True,
        "logprobs": 1,
    }


def read_echo(reply: Any, prompts: Sequence[Sequence[int]]) -> list[list[float | None]] | None:
    """Of each prompt its tokens' log-probabilities (and perhaps a written token's).

    Args:
        reply: the decoded body.
        prompts: the tokens that were sent.

    Returns:
        ``None`` where the server gives none.
    """
    choices = sorted(reply["choices"], key=lambda choice: choice.get("index") or 0)
    if len(choices) != len(prompts):
        return None
    found: list[list[float | None]] = []
    for choice, ids in zip(choices, prompts, strict=True):
        entries = choice.get("prompt_logprobs") or []
        values = [_of_token(entry, token) for entry, token in zip(entries, ids, strict=False)]
        values = values or list((choice.get("logprobs") or {}).get("token_logprobs") or [])
        if len(values) < len(ids):
            return None
        found.append(values)
    return found


def _of_token(entry: Mapping[str, Any] | None, token: int) -> float | None:
    """A prompt's own token, which vLLM lists among more likely ones."""
    known = (entry or {}).get(str(token))
    return None if known is None else float(known["logprob"])


def read_scores(answer: Mapping[str, Any], request: ScoreRequest, url: str) -> Scores:
    """The scores in an answer.

    Raises:
        EndpointError: the server does not echo log-probabilities of prompts.
    """
    echoed, start = answer.get("echoed"), len(request.ids)
    parts = [
        values[start : start + len(ids)]
        for values, ids in zip(echoed or [], request.continuations, strict=False)
    ]
    whole = echoed is not None and not any(None in part for part in parts)
    if not whole:
        raise EndpointError(
            f"{url} does not give the log-probabilities of a prompt's tokens (echo and logprobs at "
            "/completions), so actions cannot be chosen by likelihood there. vLLM does; else run the model "
            "in this process."
        )
    used = (answer.get("prompt_tokens", 0), answer.get("completion_tokens", 0))
    return Scores(
        [[float(v or 0.0) for v in part] for part in parts], usage=used if any(used) else None
    )
