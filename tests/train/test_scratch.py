"""Tokenizers made for an environment: words that it knows, or pieces that spell any text."""

from __future__ import annotations

from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import parts

from paw_train.policies.local.loading import load_model, model_folder, weights_fingerprint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import (
    piece_tokenizer,
    scratch_model,
    scratch_tokenizer,
    word_tokenizer,
)
from paw_train.policies.local.token_shift import TokenShift
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rows import append_transition
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings.model import ScratchModelSettings
from paw_train.training.spelling import practiced

SEEN = [
    "In which town was Zeil Ketom born?",
    "Zeil Ketom was born in Danork Ridge.",
    "<action>",
] * 20
ROOM = ["You see a cabinet 3, a drawer 1, and a mug.", "> go to cabinet 20", "the mug 2"]
LOST = ScratchModelSettings(spell_unknown=False)
PIECES, WORDS = piece_tokenizer(SEEN, 512), scratch_tokenizer(LOST, ROOM)
SPELLING = scratch_tokenizer(ScratchModelSettings(), ROOM)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_name_and_its_number_are_two_tokens(cabinet: int, drawer: int) -> None:
    said = f" cabinet {cabinet}, a drawer {drawer}"
    words = [" cabinet", f" {cabinet}", ",", " a", " drawer", f" {drawer}"]
    assert WORDS.tokenize(said) == words
    assert WORDS.decode(WORDS(said)["input_ids"]) == said
    assert WORDS.tokenize(" cabinet 41") == [" cabinet", "<unk>"]


def test_an_unknown_word_is_spelled() -> None:
    known = ROOM[0]
    assert SPELLING(known)["input_ids"] == WORDS(known)["input_ids"]
    assert SPELLING.decode(SPELLING(" vase 2")["input_ids"][:3]) == " va"
    assert len(PIECES.tokenize(" Ketom")) == 1 < len(PIECES.tokenize(" Vaiglel"))
    assert PIECES.unk_token_id not in PIECES(" Vaiglel Ford")["input_ids"]
    assert PIECES.tokenize("<action>") == ["<action>"]


def test_the_warm_start_practices_made_up_words() -> None:
    tokenizer = word_tokenizer(
        ["Take the mug now", "<action>take the mug</action>", "You see the mug"], spells=True
    )
    chat = ChatFormat(tokenizer)
    row = TokenRow(chat.content("Take the mug now"))
    response = chat.content("<action>take the mug</action>")
    append_transition(row, chat, response, [0.0] * len(response), "You see the mug", 0)
    seen = set()
    for (new,) in islice(practiced(repeat([row]), tokenizer, np.random.default_rng(0)), 60):
        (action,), (seen_ids,) = parts(new, ACTION), parts(new, OBSERVATION)
        prompt = chat.raw(new.ids[: new.role.index(ACTION)])
        the, mug = prompt.removeprefix("Take ").removesuffix(" now").split(" ")
        assert chat.raw(action) == f"<action>take {the} {mug}</action>", "the same word everywhere"
        assert chat.raw(seen_ids) == f"You see {the} {mug}" and len(new.logprob) == len(new.ids)
        seen.add(mug)
    assert "mug" in seen and len(seen) > 30
    assert chat.raw(row.ids).startswith("Take the mug now<action>"), "the row itself stays"


@settings(deadline=None)
@given(
    st.sampled_from([PIECES, SPELLING]),
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]))
        | st.sampled_from(["<end>", "a <agent>b", "<user>", "é<unk>", " cabinet 3", " 1754"])
    ).map("".join),
)
def test_tokenizers_that_spell_lose_no_text(tokenizer: Any, text: str) -> None:
    chat = ChatFormat(tokenizer)
    ids = chat.content(text)
    assert chat.raw(ids) == text
    assert not {chat.end_id, *tokenizer.convert_tokens_to_ids(["<user>", "<agent>"])} & {*ids}


@pytest.mark.parametrize("architecture", ["llama", "token_shift"])
def test_a_model_is_that_of_its_seed_or_folder(architecture: Any, tmp_path: Path) -> None:
    small = ScratchModelSettings(architecture=architecture, hidden=32, layers=1, heads=2)
    model, again, other = (scratch_model(small, len(WORDS), seed) for seed in (3, 3, 4))
    assert weights_fingerprint(model) == weights_fingerprint(again) != weights_fingerprint(other)
    LocalPolicy(model, WORDS).save(tmp_path)
    loaded, _ = load_model(tmp_path)
    ids = torch.arange(5, 20)[None]
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)
    if architecture == "token_shift":
        with pytest.raises(ValueError, match="only paw_train loads"):
            model_folder(tmp_path)


def test_a_shift_adds_maps_of_the_two_tokens_before_and_of_no_other() -> None:
    shift = TokenShift(6, 0)
    x = torch.randn(2, 4, 6)
    first, second = (linear.weight.T for linear in shift.previous)
    expected = x.clone()
    expected[:, 1:] += x[:, :-1] @ first
    expected[:, 2:] += x[:, :-2] @ second
    assert torch.allclose(shift(x), expected, atol=1e-6)
    assert torch.allclose(shift(x[:, :1]), x[:, :1])


def test_the_setting_chooses() -> None:
    assert len(scratch_tokenizer(ScratchModelSettings(tokenizer="pieces", pieces=600), SEEN)) <= 602
    words = scratch_tokenizer(LOST, SEEN)
    assert words.unk_token_id in words(" Vaiglel")["input_ids"]
