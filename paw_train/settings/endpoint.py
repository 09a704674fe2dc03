"""Settings of a policy behind an OpenAI-compatible endpoint (``paw eval openai:MODEL endpoint.KEY=...``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EndpointSettings:
    """Where the model answers, and how it is asked. The key is never among the settings."""

    url: str | None = None
    """base address, such as ``http://localhost:8000/v1``; null: ``OPENAI_BASE_URL``, or OpenAI's"""
    api_key_env: str = "OPENAI_API_KEY"
    """environment variable that holds the key; a server that asks for none needs none"""
    api: str = "chat"
    """``chat``: messages to ``/chat/completions``; ``completions``: token ids to ``/completions``, so
    that nothing an environment prints can be taken for a control token (needs ``tokenizer``)"""
    tokenizer: str | None = None
    """folder or hub name of the model's tokenizer, for ``api=completions``"""
    concurrency: int = 16
    """most requests at a time"""
    timeout: float = 120.0
    """seconds until a request without an answer is given up and tried again"""
    retries: int = 10
    """further tries of a request that failed by chance (server error, overload, cut connection)"""
    first_wait: float = 0.5
    """seconds before the first of them, at most; each further wait may be twice as long"""
    longest_wait: float = 30.0
    """seconds that no wait exceeds, unless the server asks for more (``Retry-After``)"""
    requests_per_minute: float | None = None
    """limit on requests; null: none"""
    tokens_per_minute: float | None = None
    """limit on tokens, prompt and response together; null: none"""
    input_price: float | None = None
    """price of a million prompt tokens; null: the cost is not computed"""
    output_price: float | None = None
    """price of a million response tokens"""
    cache: str | None = "auto"
    """file that keeps every answer, so that the same request is asked once; ``auto``: in the user's
    cache folder; null: none"""
    send_seed: bool = True
    """send each response's seed when sampling; some servers refuse the field"""
    send_stop: bool = True
    """send the stop texts; without them responses go on after the action and are cut here"""
    token_limit_field: str = "max_tokens"
    """name of the field for the longest response; newer OpenAI models: ``max_completion_tokens``"""
    extra: dict[str, Any] = field(default_factory=dict)
    """further fields of each request's body"""

    def __post_init__(self) -> None:
        if self.api not in ("chat", "completions"):
            raise ValueError(f"endpoint.api is 'chat' or 'completions', got {self.api!r}.")
        if self.api == "completions" and not self.tokenizer:
            raise ValueError(
                "endpoint.api=completions sends token ids, so it needs endpoint.tokenizer "
                "(folder or hub name of the model's tokenizer)."
            )
        least = {"concurrency": 1, "timeout": 0.001, "retries": 0, "first_wait": 0.0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"endpoint.{name} is {low} or more, got {getattr(self, name)}.")
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"endpoint.{name} is above 0, or null for none; got {value}.")
