"""A context that is too long is recognised whatever the server, and of several numbers the limit is read."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("openai")

import httpx
import openai

from paw_train.policies.endpoint.failures import is_overflow, overflow_limit

OPENAI = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
BAD = {"type": "BadRequestError", "param": None, "code": 400}
REFUSALS: list[tuple[str, int, Any, int | None]] = [
    ("OpenAI", 400, {"error": {"message": "This model's maximum context length is 128000 tokens. "
     "However, your messages resulted in 204308 tokens. Please reduce the length of the messages.",
     **OPENAI}}, 128000),
    ("OpenAI, older", 400, {"error": {"message": "This model's maximum context length is 4097 "
     "tokens, however you requested 4116 tokens (1044 in your prompt; 3072 for the completion)."}},
     4097),
    ("OpenAI, responses", 400, {"error": {"message": "Your input exceeds the context window of this "
     "model. Please adjust your input and try again.", "code": "context_length_exceeded"}}, None),
    ("OpenAI, by the minute", 429, {"error": {"message": "Request too large for gpt-4-0613 in "
     "organization org-1 on tokens per min (TPM): Limit 10000, Requested 12000. The input or output "
     "tokens must be reduced in order to run successfully.", "code": "rate_limit_exceeded"}}, 10000),
    ("Azure", 400, {"error": {"message": "Input tokens exceed the configured limit of 272000 tokens. "
     "Your messages resulted in 300000 tokens. Please reduce the length of the messages.",
     **OPENAI}}, 272000),
    ("Anthropic", 400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum",
     "type": "invalid_request_error"}}, 200000),
    ("Anthropic, both", 400, {"error": {"message": "input length and `max_tokens` exceed context "
     "limit: 197202 + 21333 > 200000, decrease input length or `max_tokens` and try again"}}, 200000),
    ("Anthropic, bytes", 413, {"error": {"type": "request_too_large",
     "message": "Request exceeds the maximum size"}}, None),
    ("Bedrock", 400, {"message": "Input is too long for requested model."}, None),
    ("Bedrock, Titan", 400, {"message": "Too many input tokens. Max input tokens: 8192, request "
     "input token count: 9001"}, 8192),
    ("Cerebras", 400, {"message": "Please reduce the length of the messages or completion. Current "
     "length is 8837 while limit is 8192", "code": "context_length_exceeded"}, 8192),
    ("Cloudflare", 400, {"errors": [{"message": "The estimated number of input and maximum output "
     "tokens (5000) exceeded this model context window limit (4096)."}]}, 4096),
    ("Cohere", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed "
     "4081 - received 4292. Try using a shorter prompt, or enabling prompt truncating."}, 4081),
    ("Cohere, chat", 400, {"message": "too many tokens: size limit exceeded by 1200 tokens. Try using "
     "shorter or fewer inputs. The limit for this model is 128000 tokens."}, 128000),
    ("DashScope", 400, {"error": {"code": "invalid_parameter_error", "param": None, "message": "<400> "
     "InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"}}, 30720),
    ("DeepSeek", 400, {"error": {"message": "This model's maximum context length is 65536 tokens. "
     "However, you requested 70853 tokens (65853 in the messages, 5000 in the completion).",
     "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}}, 65536),
    ("Fireworks", 400, {"error": {"message": "The prompt is too long: 5000, model maximum context "
     "length: 4095", "code": "invalid_request_error"}}, 4095),
    ("Gemini", 400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input "
     "token count (1196265) exceeds the maximum number of tokens allowed (1048575)."}}], 1048575),
    ("GitHub Copilot", 400, {"error": {"message": "prompt token count of 100000 exceeds the limit of "
     "65536", "code": "model_max_prompt_tokens_exceeded"}}, 65536),
    ("GitHub Models", 413, {"error": {"code": "tokens_limit_reached", "message": "Request body too "
     "large for gpt-4o model. Max size: 8000 tokens."}}, 8000),
    ("Groq", 400, {"error": {"message": "Please reduce the length of the messages or completion.",
     **OPENAI}}, None),
    ("Groq, by the minute", 413, {"error": {"message": "Request too large for model `m` in "
     "organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit 8000, Requested "
     "8391, please reduce your message size", "code": "rate_limit_exceeded"}}, 8000),
    ("llama.cpp", 400, {"error": {"code": 400, "message": "request (13392 tokens) exceeds the "
     "available context size (8192 tokens), try increasing it", "type": "exceed_context_size_error",
     "n_prompt_tokens": 13392, "n_ctx": 8192}}, 8192),
    ("llama.cpp, no number in its words", 400, {"error": {"code": 400, "message": "the request "
     "exceeds the available context size, try increasing it", "type": "exceed_context_size_error",
     "n_prompt_tokens": 5000, "n_ctx": 4096}}, 4096),
    ("llama.cpp, older", 500, {"error": {"code": 500, "message": "the request exceeds the available "
     "context size. try increasing the context size or enable context shift",
     "type": "server_error"}}, None),
    ("llama-cpp-python", 500, {"error": {"message": "Requested tokens (5120) exceed context window of "
     "2048", "type": "internal_server_error", "param": None, "code": None}}, 2048),
    ("LM Studio", 400, {"error": "The number of tokens to keep from the initial prompt is greater than "
     "the context length. Try to load the model with a larger context length, or provide a shorter "
     "input"}, None),
    ("LM Studio, newer", 400, {"error": "The number of tokens to keep from the initial prompt is "
     "greater than the context length (n_keep: 13055>= n_ctx: 4096). Try to load the model with a "
     "larger context length, or provide a shorter input."}, 4096),
    ("LM Studio, older", 400, {"error": "Trying to keep the first 10136 tokens when context the "
     "overflows. However, the model is loaded with context length of only 7866 tokens, which is not "
     "enough."}, 7866),
    ("MiniMax", 400, {"error": {"message": "invalid params, context window exceeds limit (2013)",
     "type": "bad_request_error"}}, None),
    ("Mistral", 400, {"object": "error", "message": "Prompt contains 40000 tokens and 0 draft tokens, "
     "too large for model with 32768 maximum context length", "type": "invalid_request_prompt",
     "param": None, "code": "3051", "raw_status_code": 400}, 32768),
    ("Moonshot", 400, {"error": {"message": "Invalid request: Your request exceeded model token limit: "
     "8192 (requested: 9120)", "type": "invalid_request_error"}}, 8192),
    ("Ollama", 400, {"error": {"message": "prompt too long; exceeded max context length by 1204 "
     "tokens", "type": "invalid_request_error"}}, None),
    ("OpenRouter", 400, {"error": {"message": "This endpoint's maximum context length is 32768 tokens. "
     "However, you requested about 40000 tokens (39000 of text input, 1000 in the output). Please "
     "reduce the length of either one.", "code": 400, "metadata": {"provider_name": None}}}, 32768),
    ("OpenRouter, passed on", 400, {"error": {"message": "Provider returned error", "code": 400,
     "metadata": {"raw": '{"error":{"message":"The input (5100 tokens) is longer than the model\'s '
     'context length (4096 tokens).","code":400}}'}}}, 4096),
    ("SGLang", 400, {"object": "error", "message": "The input (5120 tokens) is longer than the model's "
     "context length (4096 tokens).", **BAD}, 4096),
    ("SGLang, both", 400, {"object": "error", "message": "Requested token count exceeds the model's "
     "maximum context length of 4096 tokens. You requested a total of 5000 tokens: 4488 tokens from "
     "the input messages and 512 tokens for the completion.", **BAD}, 4096),
    ("TensorRT-LLM", 500, {"object": "error", "message": "The sum of prompt length (72417.0), query "
     "length (0) should not exceed max_num_tokens (69632)", **BAD}, 69632),
    ("TensorRT-LLM, batch manager", 500, {"message": "Prompt length (4500) exceeds maximum input "
     "length (4096). Set log level to info for how it is set"}, 4096),
    ("TGI", 422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= "
     "4096. Given: 5000 `inputs` tokens and 512 `max_new_tokens`", "error_type": "validation"}, 4096),
    ("TGI, prompt", 422, {"error": "Input validation error: `inputs` must have less than 1024 tokens. "
     "Given: 1500", "error_type": "validation"}, 1024),
    ("Together", 422, {"error": {"message": "Input validation error: `inputs` tokens + "
     "`max_new_tokens` must be <= 8193. Given: 8600 `inputs` tokens and 512 `max_new_tokens`",
     "type": "invalid_request_error", "param": "max_tokens", "code": None}}, 8193),
    ("vLLM, 2023", 400, {"object": "error", "message": "This model's maximum context length is 4096 "
     "tokens. However, you requested 4120 tokens (3608 in the messages, 512 in the completion). "
     "Please reduce the length of the messages or completion.", **BAD}, 4096),
    ("vLLM, 2025", 400, {"error": {"message": "'max_tokens' or 'max_completion_tokens' is too large: "
     "512. This model's maximum context length is 4096 tokens and your request has 4000 input tokens "
     "(512 > 4096 - 4000).", **BAD}}, 4096),
    ("vLLM, prompt", 400, {"error": {"message": "The decoder prompt (length 5000) is longer than the "
     "maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of "
     "text tokens.", **BAD}}, 4096),
    ("Volcano", 400, {"error": {"message": "Total tokens of image and text exceed max message tokens.",
     "code": "InvalidParameter"}}, None),
    ("xAI", 400, {"error": "This model's maximum prompt length is 131072 but the request contains "
     "137812 tokens."}, 131072),
    ("Z.ai", 400, {"error": {"code": "1261", "message": "Prompt 超长"}}, None),
    ("a number before the word", 400, {"error": {"message": "A prompt of 5000 tokens is over this "
     "model's 4096-token context window."}}, 4096),
    ("a proxy before the server", 413, "<html><h1>413 Request Entity Too Large</h1></html>", None),
]  # fmt: skip
"""by server: the status, the body, and the limit that is right (``None``: it names none)"""

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


def refused(status: int, body: Any) -> Exception:
    """The OpenAI client's error for a refusal."""
    client = openai.OpenAI(api_key="k", base_url="http://127.0.0.1:9/v1")
    given = {"text": body} if isinstance(body, str) else {"json": body}
    asked = httpx.Request("POST", "http://127.0.0.1:9/v1/chat/completions")
    answer = httpx.Response(status, request=asked, **given)
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
