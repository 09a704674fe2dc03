"""A GGUF model behind an OpenAI-compatible chat endpoint on CPU cores: what the leaderboard's rows used.

    pip install openvino-genai safetensors      # in an environment of its own; it brings no torch
    python benchmarks/serve_openvino.py MODEL.gguf FOLDER --name SmolLM2-135M-Instruct --port 8765

FOLDER holds the same model for transformers (``paw_train.policies.local.loading.model_folder`` makes it). Its
weights replace those that OpenVINO reads from the GGUF file, because OpenVINO rounds the offsets of
4-bit groups (Q4_1), which changes what a small model says. They are kept in 8 bits with a scale for
each 32, which loses less than 1 %.

OpenVINO GenAI batches continuously and keeps keys and values of prompts by prefix, so dialogues and
repeated prompts are cheap. Sampling follows each request's seed, up to the rounding of other batches.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from openvino import opset13 as op
from safetensors.numpy import load_file

_MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
"""of a layer of the Llama family, in the order in which OpenVINO's graph has them"""
_GROUP = 32


def convert(gguf: Path, weights: Path, folder: Path) -> None:
    """Writes OpenVINO's graph of a GGUF model of the Llama family with weights read elsewhere.

    Args:
        gguf: the model; its graph, embeddings and norms are taken.
        weights: folder with ``model.safetensors`` and ``config.json`` of the same model.
        folder: where the result goes.

    Raises:
        ValueError: the two are not the same model.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copy(gguf, scratch))
        genai.ContinuousBatchingPipeline(
            str(copy), genai.SchedulerConfig(), "CPU", {"enable_save_ov_model": True}
        )
        graph = openvino.Core().read_model(copy.parent / "openvino_model.xml")
        tensors = load_file(weights / "model.safetensors")
        products = [node for node in graph.get_ops() if _packed(node) is not None]
        products.sort(key=lambda node: int(node.get_friendly_name().rpartition("_")[2]))
        for number, product in enumerate(products):
            layer, place = divmod(number, len(_MATRICES))
            name = f"model.layers.{layer}.{_MATRICES[place]}.weight"
            _replace(product, np.asarray(tensors[name], np.float32), name)
        openvino.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
    shutil.copy(weights / "config.json", folder)


def _packed(node: Any) -> Any:
    """The 4-bit constant that a matrix product multiplies with, if it does."""
    if node.get_type_name() != "MatMul":
        return None
    source = node.input_value(1).get_node()
    while source.get_type_name() in ("Convert", "Reshape", "Multiply", "Subtract"):
        source = source.input_value(0).get_node()
    packed = source.get_type_name() == "Constant" and source.get_element_type() == openvino.Type.u4
    return source if packed else None


def _replace(product: Any, matrix: np.ndarray, name: str) -> None:
    """Lets a product multiply with ``matrix`` [out, in] in 8 bits, after a look whether it is the same."""
    constant = _packed(product)
    groups = list(constant.get_shape())
    if [groups[0], groups[1] * groups[2]] != list(matrix.shape):
        raise ValueError(f"{name} has the shape {matrix.shape}, the GGUF file's is {groups}.")
    wanted = matrix.reshape(groups)
    raw = np.asarray(constant.get_data(dtype=np.uint8)).ravel()
    found = np.stack([raw & 15, raw >> 4], -1).reshape(groups).astype(np.float32)
    a, b = (x - x.mean(-1, keepdims=True) for x in (found, wanted))
    alike = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1) + 1e-20)
    if np.median(alike) < 0.99:
        raise ValueError(f"{name} is not the matrix that the GGUF file has.")
    scale = np.maximum(np.abs(wanted).max(-1, keepdims=True) / 127, 1e-12).astype(np.float16)
    values = np.clip(np.round(wanted / scale.astype(np.float32)), -127, 127).astype(np.int8)
    scaled = op.multiply(op.convert(op.constant(values), "f16"), op.constant(scale))
    flat = op.reshape(scaled, op.constant(np.array(matrix.shape, np.int64)), False)
    product.input(1).replace_source_output(op.convert(flat, "f32").output(0))


@dataclass
class Job:
    """One request on its way."""

    prompt: str
    config: Any
    ids: list[int] = field(default_factory=list)
    finish: str = "stop"
    prompt_tokens: int = 0
    error: str | None = None
    over: threading.Event = field(default_factory=threading.Event)


class Engine:
    """Runs all jobs in one thread, batched.

    Args:
        model: folder with OpenVINO's graph.
        gguf: the GGUF file, for its tokenizer.
        threads: of the computation.
        cache_gb: memory for keys and values.
    """

    def __init__(self, model: str, gguf: str, threads: int, cache_gb: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gb
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = 1024
        scheduler.max_num_seqs = 64
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
            # bfloat16, the default, changes what this small a model says; 8-bit activations hardly do
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32",
            "KV_CACHE_PRECISION": "f32",
        }
        tokenizer = genai.Tokenizer(gguf)
        self.pipeline = genai.ContinuousBatchingPipeline(
            model, tokenizer, scheduler, "CPU", **properties
        )
        self.tokenizer = self.pipeline.get_tokenizer()
        self._new: queue.Queue[Job] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def answer(self, messages: list[dict[str, str]], body: Mapping[str, Any]) -> Job:
        """Waits for the answer to a dialogue."""
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        job = Job(prompt, _config(body))
        self._new.put(job)
        job.over.wait()
        return job

    def _work(self) -> None:
        waiting: list[Job] = []
        running: dict[int, tuple[Job, Any]] = {}
        number = 0
        while True:
            if not waiting and not running:
                waiting.append(self._new.get())
            while not self._new.empty():
                waiting.append(self._new.get())
            # of equal prompts one goes first: the others find its keys and values in the cache
            reading = {job.prompt for job, _ in running.values() if not job.ids}
            held = []
            for job in waiting:
                if job.prompt in reading:
                    held.append(job)
                    continue
                reading.add(job.prompt)
                try:
                    encoded = self.tokenizer.encode(job.prompt, add_special_tokens=False).input_ids
                    job.prompt_tokens = encoded.shape[1]
                    running[number] = job, self.pipeline.add_request(number, encoded, job.config)
                    number += 1
                except Exception as error:
                    job.error = str(error)
                    job.over.set()
            waiting = held
            if running:
                self.pipeline.step()
            for key in list(running):
                if _read(*running[key]):
                    running.pop(key)[0].over.set()

    def text(self, job: Job, stops: list[str]) -> tuple[str, str | None]:
        """The answer before the stop text, and the stop text."""
        text = str(self.tokenizer.decode(job.ids))
        at, stop = min(
            ((text.find(stop), stop) for stop in stops if stop in text), default=(-1, "")
        )
        return (text[:at], stop) if stop else (text, None)


def _read(job: Job, handle: Any) -> bool:
    """Takes what has been generated; whether that was all."""
    while handle.can_read():
        for output in handle.read().values():
            job.ids += output.generated_ids
            if output.finish_reason == genai.GenerationFinishReason.LENGTH:
                job.finish = "length"
    status = handle.get_status()
    if status == genai.GenerationStatus.IGNORED:
        job.error = "the prompt does not fit into the cache"
    return bool(status != genai.GenerationStatus.RUNNING and not handle.can_read())


def _config(body: Mapping[str, Any]) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = int(body.get("max_tokens") or 256)
    config.stop_strings = set(body.get("stop") or [])
    config.include_stop_str_in_output = True
    temperature = float(body.get("temperature", 1.0))
    config.do_sample = temperature > 0
    if temperature > 0:
        config.temperature = temperature
        config.rng_seed = int(body.get("seed") or 0)
        config.top_p = float(body.get("top_p") or 1.0)
    return config


def handler_for(engine: Engine, name: str) -> type[BaseHTTPRequestHandler]:
    """The chat endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/chat/completions" or body.get("model") != name:
                self._send(404, {"error": {"message": f"only {name} at /v1/chat/completions"}})
                return
            job = engine.answer(body["messages"], body)
            if job.error is not None:
                self._send(400, {"error": {"message": job.error}})
                return
            text, stop = engine.text(job, list(body.get("stop") or []))
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop" if stop else job.finish,
                "stop_reason": stop,
            }
            used = {"prompt_tokens": job.prompt_tokens, "completion_tokens": len(job.ids)}
            self._send(
                200,
                {"object": "chat.completion", "model": name, "choices": [choice], "usage": used},
            )

        def _send(self, status: int, body: Mapping[str, Any]) -> None:
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--name", default="model")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache-gb", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        convert(args.gguf, args.weights, Path(folder))
        engine = Engine(folder, str(args.gguf), args.threads, args.cache_gb)
    server = ThreadingHTTPServer(("127.0.0.1", args.port), handler_for(engine, args.name))
    print(f"{args.name} at http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
