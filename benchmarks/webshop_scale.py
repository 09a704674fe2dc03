"""WebShop at full size: a made-up data folder with as many products as the full official set.

    python benchmarks/webshop_scale.py make DIR [--products 1180000]     # writes the folder (about 3 GB)
    python benchmarks/webshop_scale.py measure DIR                       # compiles once, then measures

The products are those of the generated shop with descriptions made longer by words of a Zipf-like
vocabulary, so that a product has about as many search terms as a real one (100).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from paw_gym.envs.webshop.generate import generate_products
from paw_gym.envs.webshop.records import Product

HUMAN_GOALS = 12_087
VOCABULARY = 400_000
FILL = 70
"""words by which a description grows"""


def raw_record(product: Product, words: str) -> dict[str, object]:
    options = {
        name: [{"value": value, "image": None} for value in values]
        for name, values in product.options
    }
    return {
        "asin": product.asin,
        "name": product.title,
        "full_description": f"{product.description} {words}",
        "small_description": list(product.features),
        "pricing": " - ".join(f"${price}" for price in product.prices),
        "images": [""],
        "product_category": product.product_category,
        "category": product.category,
        "query": product.query,
        "customization_options": options,
    }


def make(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    vocabulary = np.array([f"w{number:x}" for number in range(VOCABULARY)])
    weights = 1 / np.arange(1, VOCABULARY + 1)
    bounds = np.cumsum(weights / weights.sum())
    human: dict[str, object] = {}
    with (
        (folder / "items_shuffle.json").open("w") as items,
        (folder / "items_ins_v2.json").open("w") as extra,
    ):
        items.write("[")
        extra.write("{")
        for number, product in enumerate(generate_products(count)):
            if number % 10_000 == 0:
                picks = np.searchsorted(bounds, rng.random((10_000, FILL)))
            comma = ", " if number else ""
            words = " ".join(vocabulary[picks[number % 10_000].clip(0, VOCABULARY - 1)])
            items.write(comma + json.dumps(raw_record(product, words)))
            extra.write(
                f'{comma}"{product.asin}": ' + json.dumps({"attributes": product.attributes})
            )
            if len(human) < HUMAN_GOALS:
                human[product.asin] = [
                    {
                        "instruction": f"{product.instruction}.",
                        "instruction_attributes": list(product.instruction_attributes),
                        "instruction_options": [values[0] for _, values in product.options],
                    }
                ]
        items.write("]")
        extra.write("}")
    (folder / "items_human_ins.json").write_text(json.dumps(human))


_OPEN = """
import json, random, sys, time
begin = time.perf_counter()
from paw_gym.envs.webshop.env import WebShopEnv
imported = time.perf_counter()
env = WebShopEnv(data_dir=sys.argv[1], nouns="rules")
opened = time.perf_counter()
env.reset(seed=0)
ready = time.perf_counter()
out = {"products": len(env.shop.catalogue), "tasks": len(env.tasks), "import_s": imported - begin,
       "open_s": opened - imported, "first_reset_s": ready - opened}
rng, times = random.Random(0), []
for seed in range(60):
    _, info = env.reset(seed=seed)
    words = [w for w in info["instruction"].split() if len(w) > 3][:8]
    query = " ".join(words).replace("[", "").replace("]", "")
    start = time.perf_counter()
    env.step(f"search[{query}]")
    times.append(time.perf_counter() - start)
times = sorted(times[10:])
out.update(search_median_ms=times[len(times) // 2] * 1e3, search_max_ms=times[-1] * 1e3)
start, steps = time.perf_counter(), 0
for seed in range(40):
    env.reset(seed=1000 + seed)
    shopper = env.expert()
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(shopper())
        over, steps = terminated or truncated, steps + 1
out["steps_per_s"] = steps / (time.perf_counter() - start)
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
out["private_mb"] = int(status["RssAnon"].split()[0]) / 1024
out["mapped_mb"] = int(status["RssFile"].split()[0]) / 1024
print(json.dumps(out))
"""


def measure(folder: Path) -> None:
    from paw_gym.envs.webshop.data_folder import DataFolder

    start = time.perf_counter()
    catalogue = DataFolder(folder).catalogue()
    compiled = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = sum(p.stat().st_size for p in catalogue.folder.rglob("*") if p.is_file()) / 1e6
    print(f"compiled (or found) in {compiled:.1f} s, peak {peak:.0f} MB, on disk {size:.0f} MB")
    for _ in range(2):
        command = [sys.executable, "-c", _OPEN, str(folder)]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--products", type=int, default=1_180_000)
    arguments = parser.parse_args()
    if arguments.what == "make":
        make(arguments.folder, arguments.products)
    else:
        measure(arguments.folder)


if __name__ == "__main__":
    main()
