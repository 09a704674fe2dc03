from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paw_gym.envs.webshop.catalogue import Product


@pytest.fixture(scope="session")
def recorded(official_shop: Path) -> dict[str, Any]:
    """150 episodes of the original program, with its prices and goals."""
    path = official_shop / "reference_episodes.json.xz"
    if not path.is_file():
        pytest.skip(f"no recorded episodes in {official_shop}")
    with lzma.open(path, "rt") as file:
        return dict(json.load(file))


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    """Makes a product in the official raw form."""
    return lambda asin, **changes: {
        "asin": asin,
        "name": f"Red Mug {asin}",
        "full_description": "A mug for tea.",
        "small_description": ["Dishwasher safe", "Holds 12 ounces"],
        "pricing": "$9.99",
        "images": ["https://example.org/mug.jpg"],
        "product_category": "Home › Kitchen › Mugs",
        "category": "kitchen",
        "query": " Mugs ",
        "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "Green"}]},
        **changes,
    }


@pytest.fixture
def make_product() -> Callable[..., Product]:
    fields: dict[str, Any] = {
        "title": "Ceramic Mug",
        "description": "A mug that keeps tea warm.",
        "features": ("Dishwasher safe", "Holds 12 ounces"),
        "price_tag": "$9.99",
        "prices": (9.99,),
        "category": "kitchen",
        "query": "mugs",
        "product_category": "Home › Kitchen › Mugs",
        "options": (("color", ("red", "green")), ("size", ("small", "large"))),
        "attributes": ("dishwasher safe", "leak proof"),
        "instruction": "I want mugs that are dishwasher safe",
        "instruction_attributes": ("dishwasher safe",),
    }
    return lambda asin="B000000001", **changes: Product(asin, **{**fields, **changes})
