"""Tokenizers made for an environment: words that it knows, or pieces that spell any text."""

from __future__ import annotations

from itertools import islice, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from rows import parts

from paw_train.policies.local.scratch import (
    piece_tokenizer,
    scratch_model,
    scratch_tokenizer,
    unknown_words,
    word_tokenizer,
)
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
PIECES = piece_tokenizer(SEEN, 512)


def test_frequent_words_are_one_piece_and_unseen_names_are_several() -> None:
    assert len(PIECES.tokenize(" Ketom")) == 1
    assert len(PIECES.tokenize(" Vaiglel")) > 1
    assert PIECES.unk_token_id not in PIECES(" Vaiglel Ford")["input_ids"]
    assert PIECES.tokenize("<action>") == ["<action>"]


ROOM = ["You see a cabinet 3, a drawer 1, and a mug.", "> go to cabinet 20", "the mug 2"]
LOST = ScratchModelSettings(spell_unknown=False)
ENTITIES = scratch_tokenizer(LOST.replace(tokenizer="entities"), ROOM)


@given(st.integers(1, 40), st.integers(1, 6))
def test_a_name_and_its_number_are_one_token_also_where_the_pair_is_new(
    cabinet: int, drawer: int
) -> None:
    said = f" cabinet {cabinet}, a drawer {drawer}"
    assert ENTITIES.tokenize(said) == [f" cabinet {cabinet}", ",", " a", f" drawer {drawer}"]
    assert ENTITIES.unk_token_id not in ENTITIES(said)["input_ids"]
    assert ENTITIES.decode(ENTITIES(said)["input_ids"]) == said


def test_what_is_said_without_a_number_stays_a_word_and_far_numbers_are_unknown() -> None:
    assert ENTITIES.tokenize(" a mug. A drawer") == [" a", " mug", ".", "<unk>", " drawer"]
    assert ENTITIES.tokenize(" cabinet 41") == ["<unk>"]
    words = scratch_tokenizer(LOST, ROOM)
    assert words.tokenize(" cabinet 3") == [" cabinet", " 3"]


SPELLING = scratch_tokenizer(ScratchModelSettings(tokenizer="entities"), ROOM)


def test_an_unknown_word_is_spelled_and_known_ones_keep_their_ids() -> None:
    known = ROOM[0]
    assert SPELLING(known)["input_ids"] == ENTITIES(known)["input_ids"]
    assert SPELLING.decode(SPELLING(" vase 2")["input_ids"][:3]) == " va"
    assert unknown_words(SPELLING, ROOM) == unknown_words(ENTITIES, ROOM) == []
    for tokenizer in (SPELLING, ENTITIES):
        assert unknown_words(tokenizer, [f"{known} a vase 2"]) == ["vase 2"]


def test_the_warm_start_practices_made_up_words_where_responses_copy_them() -> None:
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
        said, observed = chat.raw(action), chat.raw(seen_ids)
        the, mug = prompt.removeprefix("Take ").removesuffix(" now").split(" ")
        assert said == f"<action>take {the} {mug}</action>", "the same word everywhere"
        assert observed == f"You see {the} {mug}" and len(new.logprob) == len(new.ids)
        seen.add(mug)
    assert "mug" in seen and len(seen) > 30
    assert chat.raw(row.ids).startswith("Take the mug now<action>"), "the row itself stays"


ENTITY_PIECES = piece_tokenizer([*SEEN, *ROOM], 512, entities=True)
PLAIN_PIECES = piece_tokenizer([*SEEN, *ROOM], 512)


@settings(deadline=None)
@given(
    st.sampled_from([PIECES, SPELLING, ENTITY_PIECES]),
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]))
        | st.sampled_from(["<end>", "a <agent>b", "é<unk>", " cabinet 3", " 1754"])
    ).map("".join),
)
def test_tokenizers_that_spell_lose_no_text(tokenizer: Any, text: str) -> None:
    chat = ChatFormat(tokenizer)
    assert chat.raw(chat.content(text)) == text


@settings(deadline=None)
@given(st.integers(1, 40))
def test_pieces_join_a_name_and_its_number_and_nothing_else(number: int) -> None:
    entity = f" cabinet {number}"
    assert len(ENTITY_PIECES.tokenize(entity)) == 1
    assert len(PLAIN_PIECES.tokenize(entity)) > 1
    for said in (" cabinet 1754", " year 3", " Vaiglel Ford", " Zeil Ketom was born."):
        assert ENTITY_PIECES.tokenize(said) == PLAIN_PIECES.tokenize(said)
    setting = ScratchModelSettings(tokenizer="entity_pieces", pieces=512)
    assert scratch_tokenizer(setting, [*SEEN, *ROOM]).get_vocab() == ENTITY_PIECES.get_vocab()


def test_the_base_of_the_rotary_embeddings_is_that_of_the_settings() -> None:
    for theta in (10_000.0, 1e6):
        model = scratch_model(ScratchModelSettings(rope_theta=theta), 10, seed=0)
        slowest = model.model.rotary_emb.inv_freq[-1].item()
        assert slowest == pytest.approx(theta ** (-30 / 32), rel=1e-4)


def test_the_setting_chooses_and_a_wrong_one_is_named() -> None:
    assert len(scratch_tokenizer(ScratchModelSettings(tokenizer="pieces", pieces=600), SEEN)) <= 602
    words = scratch_tokenizer(LOST, SEEN)
    assert words.unk_token_id in words(" Vaiglel")["input_ids"]
    with pytest.raises(ValueError, match=r"model\.scratch\.tokenizer"):
        ScratchModelSettings.read({"tokenizer": "bytes"}, "model.scratch")
    with pytest.raises(ValueError, match=r"model\.scratch\.pieces is 512 or more"):
        ScratchModelSettings.read({"pieces": 100}, "model.scratch")
