"""Settings of a policy behind an OpenAI-compatible endpoint (``paw eval openai:MODEL endpoint.KEY=...``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, AtLeastZero, Count, Number, Positive


class EndpointSettings(Group):
    """Address and use of an OpenAI-compatible endpoint. The key is never among the settings."""

    url: str | None = None
    """base address, such as ``http://localhost:8000/v1``; null: ``OPENAI_BASE_URL``, or OpenAI's"""
    api_key_env: str = "OPENAI_API_KEY"
    """environment variable that holds the key; a server that asks for none needs none"""
    api: Literal["chat", "completions"] = "chat"
    """``chat``: messages to ``/chat/completions``; ``completions``: token ids to ``/completions``, so
    that no text of an environment is read as a control token (needs ``tokenizer``)"""
    tokenizer: str | None = None
    """folder or hub name of the model's tokenizer: needed for ``api=completions``; with ``chat`` it
    counts the tokens of contexts, which are otherwise estimated from the server's counts"""
    context_tokens: Positive | None = None
    """longest context and response of the model together, in tokens; null: the limit that the server
    reports (``/v1/models``), else the one it names when it refuses a longer context"""
    concurrency: Positive = 16
    """largest number of requests at a time"""
    timeout: Annotated[Number, Ge(0.001)] = 120.0
    """seconds after which a request without an answer is sent again"""
    retries: Count = 10
    """further tries of a request after a temporary failure (server error, overload, lost connection)"""
    first_wait: AtLeastZero = 0.5
    """longest wait before the first further try, in seconds; each later wait may be twice as long"""
    longest_wait: AtLeastZero = 30.0
    """longest wait before any further try, in seconds, unless the server asks for more (``Retry-After``)"""
    requests_per_minute: AboveZero | None = None
    """most requests per minute; null: no limit"""
    tokens_per_minute: AboveZero | None = None
    """most tokens per minute, prompts and responses together; null: no limit"""
    input_price: AtLeastZero | None = None
    """price of a million prompt tokens; null: the cost is not computed"""
    output_price: AtLeastZero | None = None
    """price of a million response tokens; null: 0 where ``input_price`` is given"""
    budget_cost: AboveZero | None = None
    """most money that one command spends (needs a price); the same command continues afterwards, and answers
    from the cache are free. null: no limit"""
    budget_tokens: Positive | None = None
    """most tokens that one command uses, prompts and responses together; null: no limit"""
    budget_requests: Positive | None = None
    """most requests that one command sends, repeated ones included; null: no limit"""
    budget_minutes: AboveZero | None = None
    """minutes after which a command sends no further requests; null: no limit"""
    cache: str | None = "auto"
    """file that keeps every answer, so that the same request is sent once; ``auto``: in the user's
    cache folder; null: no cache"""
    send_seed: bool = True
    """whether each sampled response's seed is sent; some servers refuse the field"""
    send_stop: bool = True
    """whether stop texts are sent; without them responses continue after the action and are truncated here"""
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
