"""Failed requests of every server: contexts too long, fields unknown there, waits."""

from __future__ import annotations

import email.utils
from typing import Any

import pytest

pytest.importorskip("openai")

import httpx
import openai

from paw_train.policies.endpoint.failures import Fallbacks, hint, is_overflow, overflow_limit
from paw_train.policies.endpoint.transport import asked_wait, retry_wait

OPENAI = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
BAD = {"type": "BadRequestError", "param": None, "code": 400}
REFUSALS: list[tuple[str, int, Any, int | None]] = [
    ("OpenAI", 400, {"error": {"message": "This model's maximum context length is 128000 tokens. "
     "However, your messages resulted in 204308 tokens.", **OPENAI}}, 128000),
    ("OpenAI, responses", 400, {"error": {"message": "Your input exceeds the context window of this "
     "model.", "code": "context_length_exceeded"}}, None),
    ("OpenAI, by the minute", 429, {"error": {"message": "Request too large for gpt-4-0613 in "
     "organization org-1 on tokens per min (TPM): Limit 10000, Requested 12000.",
     "code": "rate_limit_exceeded"}}, 10000),
    ("Azure", 400, {"error": {"message": "Input tokens exceed the configured limit of 272000 tokens. "
     "Your messages resulted in 300000 tokens.", **OPENAI}}, 272000),
    ("Anthropic", 400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum",
     "type": "invalid_request_error"}}, 200000),
    ("Anthropic, both", 400, {"error": {"message": "input length and `max_tokens` exceed context "
     "limit: 197202 + 21333 > 200000, decrease input length or `max_tokens` and try again"}}, 200000),
    ("Bedrock", 400, {"message": "Input is too long for requested model."}, None),
    ("Bedrock, Titan", 400, {"message": "Too many input tokens. Max input tokens: 8192, request "
     "input token count: 9001"}, 8192),
    ("Cerebras", 400, {"message": "Please reduce the length of the messages or completion. Current "
     "length is 8837 while limit is 8192", "code": "context_length_exceeded"}, 8192),
    ("Cloudflare", 400, {"errors": [{"message": "The estimated number of input and maximum output "
     "tokens (5000) exceeded this model context window limit (4096)."}]}, 4096),
    ("Cohere", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed "
     "4081 - received 4292."}, 4081),
    ("Cohere, chat", 400, {"message": "too many tokens: size limit exceeded by 1200 tokens. Try using "
     "shorter or fewer inputs. The limit for this model is 128000 tokens."}, 128000),
    ("DashScope", 400, {"error": {"code": "invalid_parameter_error", "param": None, "message": "<400> "
     "InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"}}, 30720),
    ("Fireworks", 400, {"error": {"message": "The prompt is too long: 5000, model maximum context "
     "length: 4095", "code": "invalid_request_error"}}, 4095),
    ("Gemini", 400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input "
     "token count (1196265) exceeds the maximum number of tokens allowed (1048575)."}}], 1048575),
    ("GitHub Copilot", 400, {"error": {"message": "prompt token count of 100000 exceeds the limit of "
     "65536", "code": "model_max_prompt_tokens_exceeded"}}, 65536),
    ("GitHub Models", 413, {"error": {"code": "tokens_limit_reached", "message": "Request body too "
     "large for gpt-4o model. Max size: 8000 tokens."}}, 8000),
    ("llama.cpp, no number in its words", 400, {"error": {"code": 400, "message": "the request "
     "exceeds the available context size, try increasing it", "type": "exceed_context_size_error",
     "n_prompt_tokens": 5000, "n_ctx": 4096}}, 4096),
    ("llama.cpp, older", 500, {"error": {"code": 500, "message": "the request exceeds the available "
     "context size.", "type": "server_error"}}, None),
    ("llama-cpp-python", 500, {"error": {"message": "Requested tokens (5120) exceed context window of "
     "2048", "type": "internal_server_error", "param": None, "code": None}}, 2048),
    ("LM Studio", 400, {"error": "The number of tokens to keep from the initial prompt is greater than "
     "the context length. Try to load the model with a larger context length"}, None),
    ("LM Studio, newer", 400, {"error": "The number of tokens to keep from the initial prompt is "
     "greater than the context length (n_keep: 13055>= n_ctx: 4096)."}, 4096),
    ("LM Studio, older", 400, {"error": "Trying to keep the first 10136 tokens when context the "
     "overflows. However, the model is loaded with context length of only 7866 tokens."}, 7866),
    ("MiniMax", 400, {"error": {"message": "invalid params, context window exceeds limit (2013)",
     "type": "bad_request_error"}}, None),
    ("Mistral", 400, {"object": "error", "message": "Prompt contains 40000 tokens and 0 draft tokens, "
     "too large for model with 32768 maximum context length", "type": "invalid_request_prompt",
     "param": None, "code": "3051", "raw_status_code": 400}, None),
    ("Moonshot", 400, {"error": {"message": "Invalid request: Your request exceeded model token limit: "
     "8192 (requested: 9120)", "type": "invalid_request_error"}}, 8192),
    ("Ollama", 400, {"error": {"message": "prompt too long; exceeded max context length by 1204 "
     "tokens", "type": "invalid_request_error"}}, None),
    ("OpenRouter, passed on", 400, {"error": {"message": "Provider returned error", "code": 400,
     "metadata": {"raw": '{"error":{"message":"The input (5100 tokens) is longer than the model\'s '
     'context length (4096 tokens).","code":400}}'}}}, 4096),
    ("SGLang, both", 400, {"object": "error", "message": "Requested token count exceeds the model's "
     "maximum context length of 4096 tokens. You requested a total of 5000 tokens: 4488 tokens from "
     "the input messages and 512 tokens for the completion.", **BAD}, 4096),
    ("TensorRT-LLM", 500, {"object": "error", "message": "The sum of prompt length (72417.0), query "
     "length (0) should not exceed max_num_tokens (69632)", **BAD}, 69632),
    ("TensorRT-LLM, batch manager", 500, {"message": "Prompt length (4500) exceeds maximum input "
     "length (4096)."}, 4096),
    ("TGI", 422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= "
     "4096. Given: 5000 `inputs` tokens and 512 `max_new_tokens`", "error_type": "validation"}, 4096),
    ("TGI, prompt", 422, {"error": "Input validation error: `inputs` must have less than 1024 tokens. "
     "Given: 1500", "error_type": "validation"}, 1024),
    ("vLLM, 2023", 400, {"object": "error", "message": "This model's maximum context length is 4096 "
     "tokens. However, you requested 4120 tokens (3608 in the messages, 512 in the completion).",
     **BAD}, 4096),
    ("vLLM, prompt", 400, {"error": {"message": "The decoder prompt (length 5000) is longer than the "
     "maximum model length of 4096.", **BAD}}, 4096),
    ("Volcano", 400, {"error": {"message": "Total tokens of image and text exceed max message tokens.",
     "code": "InvalidParameter"}}, None),
    ("xAI", 400, {"error": "This model's maximum prompt length is 131072 but the request contains "
     "137812 tokens."}, 131072),
    ("Z.ai", 400, {"error": {"code": "1261", "message": "Prompt 超长"}}, None),
    ("a number before the word", 400, {"error": {"message": "A prompt of 5000 tokens is over this "
     "model's 4096-token context window."}}, None),
    ("a proxy before the server", 413, "<html><h1>413 Request Entity Too Large</h1></html>", None),
]  # fmt: skip
"""by server: the status, the body, and the limit that is read; ``None``: it is in none of the usual places"""

OTHERS: list[tuple[str, int, Any]] = [
    ("too long a response", 400, {"error": {"message": "max_tokens is too large: 9999. This model "
     "supports at most 4096 completion tokens, whereas you provided 9999.", "param": "max_tokens"}}),
    ("Cohere, response", 400, {"message": "too many tokens: max tokens must be less than or equal to "
     "4096, the maximum output for this model - received 9000."}),
    ("a rate", 429, {"error": {"message": "Rate limit reached for m on tokens per min (TPM): Limit "
     "6000, Used 5800, Requested 700. Please try again in 5s.", "code": "rate_limit_exceeded"}}),
    ("Bedrock's rate", 429, {"message": "Too many tokens, please wait before trying again."}),
    ("a fault", 500, {"error": {"message": "CUDA out of memory"}}),
    ("stop", 400, {"error": {"message": "Invalid 'stop': array too long. Expected an array with "
     "maximum length 4", "param": "stop"}}),
    ("model", 404, {"error": {"message": "No endpoints with enough context length for m"}}),
]  # fmt: skip


FIELDS: list[tuple[str, str | None, str | None, str | None]] = [
    ("Unsupported parameter: 'max_tokens' is not supported with this model.", None, "max_tokens", None),
    ("max_tokens: Extra inputs are not permitted", None, "max_tokens", None),
    ("max_tokens is too large: 9999. This model supports at most 4096 completion tokens", None, None,
     "rollout.max_response_tokens=N"),
    ("'max_tokens' is too large: 512. This model's maximum context length is 4096 tokens and "
     "your request has 4000 input tokens, which is not supported", None, None, "context_tokens=4096"),
    ("messages: unknown role", None, None, None),
    ("Unsupported parameter: 'temperature' is not supported with this model.", "temperature",
     "temperature", None),
    ("Unsupported value: 'temperature' does not support 0.4 with this model. Only the default (1) "
     "value is supported.", "temperature", None, "evaluation.temperature=1"),
    ("The parameter `top_p` is not supported by model doubao-seed-1.6", "top_p", None, None),
    ("The parameter `top_p` is not supported by model doubao-seed-1.6", None, None, None),
    ("This model (gpt-stop) takes a temperature; `seed` is not supported", None, "seed", None),
    ("parameter.enable_thinking must be set to false for non-streaming calls", None, None,
     "endpoint.extra={enable_thinking: false}"),
    ("Invalid 'stop': array too long. Expected an array with maximum length 4", "stop", None,
     "endpoint.extra={stop: null}"),
    ("The model tool-ace-8b is not available in your region", None, None, None),
]  # fmt: skip
"""refusals: the words, the ``param``, the field that is left out, and what is advised where none is"""


def refused(status: int, body: Any = None, **headers: str) -> Exception:
    """The OpenAI client's error for a refusal."""
    client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1")
    given = {"text": body} if isinstance(body, str) else {"json": body}
    asked = httpx.Request("POST", "http://127.0.0.1:9/v1/chat/completions")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = httpx.Response(status, request=asked, headers=named, **given)
    error: Exception = client._make_status_error_from_response(answer)
    return error


@pytest.mark.parametrize(("server", "status", "body", "limit"), REFUSALS)
def test_each_server_s_refusal_is_recognised_and_its_limit_read(
    server: str, status: int, body: Any, limit: int | None
) -> None:
    error = refused(status, body)
    assert is_overflow(error)
    assert overflow_limit(error) == limit


@pytest.mark.parametrize(("what", "status", "body"), OTHERS)
def test_other_refusals_are_not_taken_for_one(what: str, status: int, body: Any) -> None:
    assert not is_overflow(refused(status, body))


@pytest.mark.parametrize(("message", "param", "left_out", "advice"), FIELDS)
def test_only_the_field_that_a_refusal_is_about_is_left_out(
    message: str, param: str | None, left_out: str | None, advice: str | None
) -> None:
    body = {"model": "m", "messages": [], "temperature": 0.4, "seed": 1, "stop": ["x"]}
    body["max_tokens"] = 5
    fallbacks, error = Fallbacks(), refused(400, {"error": {"message": message, "param": param}})
    assert fallbacks.learn(error, body) is (left_out is not None)
    wanted = {name: value for name, value in body.items() if name != left_out}
    if left_out == "max_tokens":
        wanted["max_completion_tokens"] = 5
    assert fallbacks.apply(body) == wanted
    if left_out is None:
        found = hint(error, body)
        assert found is None if advice is None else advice in str(found)


def test_retry_after_is_read_in_all_its_forms() -> None:
    now = 1_700_000_000.0
    date = email.utils.formatdate(now + 90, usegmt=True)
    assert asked_wait(refused(429, retry_after="7"), now) == 7.0
    assert asked_wait(refused(429, retry_after=date), now) == pytest.approx(90, abs=1)
    assert asked_wait(refused(429, retry_after_ms="250"), now) == 0.25
    for error in (refused(429, retry_after="soon"), refused(429), RuntimeError()):
        assert asked_wait(error, now) is None


def test_waits_grow_to_a_bound_with_jitter_and_never_undercut_the_server() -> None:
    waits = [[retry_wait(n, None) for _ in range(300)] for n in (1, 2, 4, 9)]
    for bound, drawn in zip((0.01, 0.02, 0.08, 0.6), waits, strict=True):
        assert 0 <= min(drawn) < 0.1 * bound
        assert 0.9 * bound < max(drawn) <= bound
    assert all(retry_wait(1, 5.0) >= 5.0 for _ in range(50))
