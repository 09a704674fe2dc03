"""Adapters: what is trained, what a checkpoint holds, what the reference is, and resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from rows import token_row  # noqa: E402

from paw_train.evaluation import evaluate_from_args, world_model_program  # noqa: E402
from paw_train.policies.local import lora  # noqa: E402
from paw_train.policies.local.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from paw_train.policies.local.policy import LocalPolicy  # noqa: E402
from paw_train.policies.local.scratch import scratch_model, word_tokenizer  # noqa: E402
from paw_train.rollouts.scoring import collate  # noqa: E402
from paw_train.settings import load_settings  # noqa: E402
from paw_train.settings.model import (  # noqa: E402
    LoraSettings,
    ScratchModelSettings,
)
from paw_train.training.local import train_from_recipe  # noqa: E402

SMALL = ScratchModelSettings(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64)
TOKENIZER = word_tokenizer(["a few words to speak with"])
RANK_4 = LoraSettings(rank=4)
FEW = ["evaluation.tasks=1", "rollout.max_response_tokens=8", "env.kwargs.max_steps=3"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    LocalPolicy(scratch_model(SMALL, len(TOKENIZER), 0), TOKENIZER).save(tmp_path / "base")
    return tmp_path / "base"


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
    assert policy.fallback_reason() is None
    assert _logprobs(policy).sum() > _logprobs(plain).sum()


def test_a_checkpoint_holds_the_adapter_alone_and_loads_with_its_base(
    base: Path, tmp_path: Path
) -> None:
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


def test_saving_asks_no_hub_for_the_base(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4)
    policy.model.peft_config[lora.TRAINED].base_model_name_or_path = "packaged-model"
    asked: list[object] = []
    monkeypatch.setattr(
        "peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *a, **k: asked.append(a)
    )
    policy.save(tmp_path / "a")
    assert not asked and LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(base=str(base)))


def test_peft_itself_reads_the_adapter(base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy = LocalPolicy.load(base, adapter=RANK_4)
    _learn(policy, 2)
    policy.save(tmp_path / "a")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "a")
    ids = _batch().ids
    with torch.no_grad():
        expected = policy.model(input_ids=ids).logits
        torch.testing.assert_close(model(input_ids=ids).logits, expected)


def test_an_adapter_on_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4)
    save_checkpoint(tmp_path / "c", policy, {})
    shutil.rmtree(base)
    LocalPolicy(scratch_model(SMALL, len(TOKENIZER), 1), TOKENIZER).save(base)
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
    with pytest.raises(ValueError, match="another architecture"):
        LocalPolicy.load(tmp_path / "c" / "model", adapter=below)


def test_an_adapter_of_another_form_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalPolicy.load(base, adapter=RANK_4).save(tmp_path / "a")
    with pytest.raises(ValueError, match=r"model\.lora\.rank"):
        LocalPolicy.load(base, adapter=LoraSettings(rank=2)).load_weights(tmp_path / "a")
    monkeypatch.setattr(lora, "_TARGETS", ["q_proj", "v_proj"])
    with pytest.raises(ValueError, match="their layers differ"):
        LocalPolicy.load(base, adapter=RANK_4).load_weights(tmp_path / "a")
    with pytest.raises(ValueError, match="has rank 4"):
        LocalPolicy.load(tmp_path / "a", adapter=LoraSettings(rank=2, base=str(base)))
    with pytest.raises(ValueError, match=r"model\.path"):
        load_settings("smoke", ["model.lora.rank=4"])


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_the_reference_stays_what_the_policy_was(base: Path, adapted: bool, warm: bool) -> None:
    policy = LocalPolicy.load(base, adapter=RANK_4 if adapted else None)
    if warm:
        _learn(policy, 2)
    before = _logprobs(policy, 0.7)
    trainable = {n for n, p in policy.model.named_parameters() if p.requires_grad}
    reference = policy.reference(offload=True)
    if adapted:
        assert (lora.REFERENCE in policy.model.peft_config) == warm
    for _ in range(3):
        torch.testing.assert_close(_logprobs(reference, 0.7), before, rtol=0, atol=1e-6)
        assert not reference.logprobs(_batch()).requires_grad
        reference.offload()
        _learn(policy)
    assert {n for n, p in policy.model.named_parameters() if p.requires_grad} == trainable
    assert (_logprobs(policy, 0.7) - before).abs().max() > 1e-3


@pytest.mark.parametrize("warm", [False, True])
def test_adapters_on_embeddings_learn_are_kept_and_have_a_reference(
    base: Path, tmp_path: Path, warm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "_TARGETS", ["embed_tokens", "q_proj"])
    policy = LocalPolicy.load(base, adapter=RANK_4)
    if warm:
        _learn(policy, 2)
    before = _logprobs(policy)
    reference = policy.reference()
    fresh = {n: p.clone() for n, p in policy.model.named_parameters() if p.requires_grad}
    assert {n.rpartition(".lora_")[2].split(".")[0] for n in fresh} == {
        "A", "B", "embedding_A", "embedding_B"
    }  # fmt: skip
    _learn(policy, 2)
    for name, parameter in policy.model.named_parameters():
        assert name not in fresh or not torch.equal(parameter, fresh[name]), name
    torch.testing.assert_close(_logprobs(reference), before, rtol=0, atol=1e-6)
    save_checkpoint(tmp_path / "c", policy, {})
    again = LocalPolicy.load(base, adapter=RANK_4, seed=5)
    load_checkpoint(tmp_path / "c", again)
    assert torch.equal(_logprobs(again), _logprobs(policy))
    loaded = LocalPolicy.load(tmp_path / "c" / "model", adapter=LoraSettings(base=str(base)))
    assert torch.equal(_logprobs(loaded), _logprobs(policy))


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
        named = policy.model.named_parameters()
        gradients.append({n: p.grad for n, p in named if p.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


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
    gradients = []
    for recompute in (False, True):
        policy = LocalPolicy.load(
            base, adapter=RANK_4 if adapted else None, gradient_checkpointing=recompute
        )
        _learn(policy)  # so that the adapter does something
        policy.model.eval()
        calls = _count_calls(policy.model.get_decoder().layers[0].mlp)
        policy.logprobs(_batch()).sum().backward()
        assert len(calls) == 1 + recompute
        gradients.append([p.grad for p in policy.model.parameters() if p.requires_grad])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


def test_the_first_pass_recomputes_too(base: Path) -> None:
    """The LM head is tested in that pass, which must leave every module's flag as it was."""
    policy = LocalPolicy.load(base, gradient_checkpointing=True)
    policy.model.eval()
    calls = _count_calls(policy.model.get_decoder().layers[0].mlp)
    logprobs = policy.logprobs(_batch())
    before = len(calls)
    logprobs.sum().backward()
    assert len(calls) == before + 1
    assert not any(module.training for module in policy.model.modules())


def _count_calls(module: Any) -> list[int]:
    calls: list[int] = []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


def test_a_revision_is_trained_evaluated_and_recorded(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    common = [
        f"out={tmp_path}", f"model.path={start / 'checkpoints' / 'latest' / 'model'}", kind,
        "optimizer.lr=1e-5",  # too small for bfloat16, were it alone
        "optimizer.measure_gradients=false", "cloning.matrix_lr=null", "cloning.steps=2",
        "updates=3", "checkpoint_every=1", "evaluation.tasks=4",
    ]  # fmt: skip
    whole = train_from_recipe("smoke", [*common, "name=whole"], quiet=True)
    shutil.copytree(whole, tmp_path / "cut")
    for gone in ("eval_after.json", "report.html"):
        (tmp_path / "cut" / gone).unlink(missing_ok=True)
    half = train_from_recipe("smoke", [*common, "name=half", "updates=1"], quiet=True)
    shutil.rmtree(tmp_path / "cut" / "checkpoints")
    shutil.copytree(half / "checkpoints", tmp_path / "cut" / "checkpoints")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "best", ignore_errors=True)
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    (tmp_path / "cut" / "config.json").write_text(json.dumps({**config, "name": "cut"}))
    train_from_recipe("smoke", [*common, "name=cut"], quiet=True)
    below = str(start / "checkpoints" / "latest" / "model") if "rank" in kind else None
    one, two = (
        LocalPolicy.load(
            tmp_path / name / "checkpoints" / "latest", adapter=LoraSettings(base=below)
        )
        for name in ("whole", "cut")
    )
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)
    states = [
        torch.load(tmp_path / name / "checkpoints" / "latest" / "state.pt", weights_only=False)
        for name in ("whole", "cut")
    ]
    masters = [state["optimizer"]["masters"] for state in states]
    assert bool(masters[0]) == ("bfloat16" in kind)
    assert all(torch.equal(a, b) for a, b in zip(*masters, strict=True))
    given = ["evaluation.tasks=2", *([f"model.lora.base={below}"] if below else [])]
    path = evaluate_from_args(str(whole), given, str(tmp_path / "eval"))
    assert json.loads(path.read_text())["n"] == 2
