"""Settings of a policy behind an OpenAI-compatible endpoint (``paw eval openai:MODEL endpoint.KEY=...``)."""

from __future__ import annotations

from typing import Annotated, Any, Self

from annotated_types import Ge
from pydantic import model_validator

from paw_train.settings.base import AboveZero, AtLeastZero, Count, Group, Number, Positive

CURRENCY = "$"
"""of all prices, budgets and costs"""


_SET_ELSEWHERE = {
    "model": "the model's name (openai:MODEL)",
    "messages": "the agent",
    "temperature": "evaluation.temperature",
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "max_tokens": "rollout.max_response_tokens",
    "seed": "evaluation.seed",
}
"""fields of a request's body that ``extra`` may leave out with null, and not set"""


def money(amount: float) -> str:
    return f"{CURRENCY}{amount:.4g}"


class EndpointSettings(Group):
    """Address and use of an OpenAI-compatible endpoint. The key is never among the settings."""

    url: str | None = None
    """base address, such as ``http://localhost:8000/v1``; null: ``OPENAI_BASE_URL``, or OpenAI's"""
    api_key_env: str = "OPENAI_API_KEY"
    """environment variable that contains the key; not needed for a server that asks for no key"""
    context_tokens: Positive | None = None
    """maximum length of context and response together, in tokens; null: the limit that the server reports
    (``/v1/models``), otherwise the one that it names when it refuses a longer context"""
    concurrency: Positive = 16
    """maximum number of concurrent requests"""
    timeout: Annotated[Number, Ge(0.001)] = 120.0
    """seconds after which a request without an answer is sent again"""
    retries: Count = 10
    """number of retries of a request after temporary failures (server error, overload, lost connection). The
    waits before them grow to half a minute, or last as long as the server asks (``Retry-After``); a server
    that asks for more than 10 minutes ends the command, as a budget does"""
    input_price: AtLeastZero | None = None
    """price of a million prompt tokens, in US dollars; null: the cost is not computed"""
    cached_input_price: AtLeastZero | None = None
    """price of a million prompt tokens that the server reads from its prefix cache; null: ``input_price``"""
    output_price: AtLeastZero | None = None
    """price of a million response tokens, in US dollars; null: 0 if ``input_price`` is given"""
    budget_cost: AboveZero | None = None
    """maximum cost of one command, in US dollars (needs a price); the same command run again continues,
    and answers from the cache are free. null: no limit"""
    budget_requests: Positive | None = None
    """maximum number of requests that one command sends, including retries; null: no limit"""
    cache: str | None = "auto"
    """file that stores every answer, so that identical requests are sent only once; ``auto``: in the user's
    cache folder; null: no cache"""
    extra: dict[str, Any] = {}
    """additional fields of each request's body, such as ``tool_choice: required``; fields of other settings
    (``temperature``, ``seed``, ...) can only be set to null"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, place in _SET_ELSEWHERE.items():
            if self.extra.get(name) is not None:
                raise ValueError(f"endpoint.extra: {name} is set by {place}, which results record.")
        if self.budget_cost is not None and not self.priced:
            raise ValueError(
                "endpoint.budget_cost needs prices: give endpoint.input_price and "
                "endpoint.output_price (of a million tokens)."
            )
        return self

    @property
    def priced(self) -> bool:
        return self.input_price is not None or self.output_price is not None

    def cost(
        self, prompt_tokens: float, completion_tokens: float, cached_tokens: float = 0
    ) -> float:
        """The price of these tokens; ``cached_tokens`` are part of ``prompt_tokens``."""
        price = self.input_price or 0.0
        cached = price if self.cached_input_price is None else self.cached_input_price
        prompt = (prompt_tokens - cached_tokens) * price + cached_tokens * cached
        return (prompt + completion_tokens * (self.output_price or 0.0)) / 1e6
