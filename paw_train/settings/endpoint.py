"""Settings of a policy behind an OpenAI-compatible endpoint (``paw eval openai:MODEL endpoint.KEY=...``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, Number, Positive


class EndpointSettings(Group):
    """Where the model answers, and how it is asked. The key is never among the settings."""

    url: str | None = None
    """base address, such as ``http://localhost:8000/v1``; null: ``OPENAI_BASE_URL``, or OpenAI's"""
    api_key_env: str = "OPENAI_API_KEY"
    """environment variable that holds the key; a server that asks for none needs none"""
    api: Literal["chat", "completions"] = "chat"
    """``chat``: messages to ``/chat/completions``; ``completions``: token ids to ``/completions``, so
    that nothing an environment prints can be taken for a control token (needs ``tokenizer``)"""
    tokenizer: str | None = None
    """folder or hub name of the model's tokenizer: needed for ``api=completions``; with ``chat`` it
    counts the tokens of contexts, which are else estimated from what the server counts"""
    context_tokens: Positive | None = None
    """longest context and response of the model together, in tokens; null: what the server says
    (``/v1/models``), else what it names when it refuses a longer one"""
    concurrency: Positive = 16
    """most requests at a time"""
    timeout: Annotated[Number, Ge(0.001)] = 120.0
    """seconds until a request without an answer is given up and tried again"""
    retries: Count = 10
    """further tries of a request that failed by chance (server error, overload, cut connection)"""
    first_wait: AtLeastZero = 0.5
    """seconds before the first of them, at most; each further wait may be twice as long"""
    longest_wait: AtLeastZero = 30.0
    """seconds that no wait exceeds, unless the server asks for more (``Retry-After``)"""
    requests_per_minute: AboveZero | None = None
    """limit on requests; null: none"""
    tokens_per_minute: AboveZero | None = None
    """limit on tokens, prompt and response together; null: none"""
    input_price: AtLeastZero | None = None
    """price of a million prompt tokens; null: the cost is not computed"""
    output_price: AtLeastZero | None = None
    """price of a million response tokens"""
    budget_cost: AboveZero | None = None
    """stop before this much is spent (needs a price); the same command goes on. null: no limit.
    Each budget is that of one command; answers from the cache are free"""
    budget_tokens: Positive | None = None
    """stop before so many tokens are used, prompts and responses together; null: no limit"""
    budget_requests: Positive | None = None
    """stop after so many requests, repeated ones included; null: no limit"""
    budget_minutes: AboveZero | None = None
    """send nothing more after so many minutes; null: no limit"""
    cache: str | None = "auto"
    """file that keeps every answer, so that the same request is asked once; ``auto``: in the user's
    cache folder; null: none"""
    send_seed: bool = True
    """send each response's seed when sampling; some servers refuse the field"""
    send_stop: bool = True
    """send the stop texts; without them responses go on after the action and are cut here"""
    token_limit_field: str = "max_tokens"
    """name of the field for the longest response; newer OpenAI models want ``max_completion_tokens``,
    which is tried where a server refuses ``max_tokens``"""
    tool_choice: Literal["auto", "required"] = "auto"
    """for ``agent.action_format=tools``: ``auto``, or ``required`` (the model must call a tool)"""
    extra: dict[str, Any] = {}
    """further fields of each request's body"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.api == "completions" and not self.tokenizer:
            raise ValueError(
                "endpoint.api=completions sends token ids, so it needs endpoint.tokenizer "
                "(folder or hub name of the model's tokenizer)."
            )
        if self.budget_cost is not None and not self.priced:
            raise ValueError(
                "endpoint.budget_cost needs prices: give endpoint.input_price and "
                "endpoint.output_price (of a million tokens)."
            )
        return self

    @property
    def priced(self) -> bool:
        """Whether costs can be computed."""
        return self.input_price is not None or self.output_price is not None

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """What so many tokens cost; a price that is not given counts as 0."""
        prompt = prompt_tokens * (self.input_price or 0.0)
        return (prompt + completion_tokens * (self.output_price or 0.0)) / 1e6
