"""Compiled catalogues, and the official files they are made from."""

from __future__ import annotations

import errno
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.envs.webshop import data_folder
from paw_gym.envs.webshop.catalogue import Catalogue, Product, compile_catalogue, is_compiled
from paw_gym.envs.webshop.data_folder import DataFolder, parse_product, read_json_list
from paw_gym.envs.webshop.env import WebShopEnv
from paw_gym.envs.webshop.generate import generate_products
from paw_gym.envs.webshop.goals import SPLITS


def test_products_come_back_as_they_were(tmp_path: Path) -> None:
    products = list(generate_products(120))
    catalogue = Catalogue(compile_catalogue(products, tmp_path / "c"))
    assert list(catalogue) == [catalogue[n] for n in range(120)] == products
    assert [catalogue.number_of(product.asin) for product in products] == list(range(120))
    with pytest.raises(KeyError, match="NOPE"):
        catalogue.by_asin("NOPE")
    with pytest.raises(IndexError):
        catalogue[120]


def test_the_first_of_two_with_the_same_asin_counts(tmp_path: Path, make_product: Any) -> None:
    one, other = make_product(title="one"), make_product("B1")
    listed = [[one, other], [one, other, make_product(title="two")], [other, one]]
    first, twice, turned = (
        Catalogue(compile_catalogue(products, tmp_path / f"{number}"))
        for number, products in enumerate(listed)
    )
    assert len(twice) == 2 and twice.by_asin("B000000001").title == "one"
    assert first.fingerprint == twice.fingerprint != turned.fingerprint


def test_a_damaged_folder_is_replaced_by_a_whole_one(tmp_path: Path, make_product: Any) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "catalogue.json").write_text("{")
    with pytest.raises(ValueError, match="no product"):
        compile_catalogue([], folder)
    assert not is_compiled(folder)
    compile_catalogue([make_product()], folder)
    assert is_compiled(folder) and list(tmp_path.iterdir()) == [folder]


def test_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import sys\n"
        "from paw_gym.envs.webshop.catalogue import compile_catalogue\n"
        "from paw_gym.envs.webshop.generate import generate_products\n"
        "compile_catalogue(generate_products(300), Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "c")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[1] for process in running] == [b""] * 3
    assert [process.returncode for process in running] == [0] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_raw_record(record: Any) -> None:
    extra = {"B1": {"attributes": ["leak proof"], "instruction": "x", "instruction_attributes": []}}
    product = parse_product(record("B1"), extra)
    assert product is not None
    assert product.options == (("color", ("red | blue", "green")),)
    assert product.query == "mugs" and product.attributes == ("leak proof",)
    assert product.search_text == (
        "red mug b1 a mug for tea. dishwasher safe color: red | blue, green"
    )
    assert Product.unpack(product.pack()) == product


@pytest.mark.parametrize(
    ("pricing", "tag", "prices"),
    [
        ("$1,234.50", "$1234.5", (1234.5,)),
        ("$19.99 - $27.99", "$19.99 to $27.99", (19.99, 27.99)),
        ("", "$100.0", (100.0,)),
        (None, "$100.0", (100.0,)),
        (19.99, "$19.99", (19.99,)),
        (5, "$5.0", (5.0,)),
    ],
)
def test_prices(record: Any, pricing: Any, tag: str, prices: tuple[float, ...]) -> None:
    product = parse_product(record("B1", pricing=pricing), {})
    assert product is not None and (product.price_tag, product.prices) == (tag, prices)


def test_what_the_original_drops_or_fills_in(record: Any) -> None:
    assert parse_product(record("nan"), {}) is None
    assert parse_product(record("B123456789012"), {}) is None
    product = parse_product(
        record("B1", small_description="", customization_options={"Size": None}), {}
    )
    assert product is not None
    assert product.attributes == ("DUMMY_ATTR",) and product.options == ()
    for entry in (None, {"attributes": None}, {}):
        product = parse_product(record("B1"), {"B1": entry})
        assert product is not None and product.attributes == ("DUMMY_ATTR",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": None}, "name is None"),
        ({"pricing": "soon"}, "soon"),
        ({"pricing": "$ - $5"}, "Product 'B1' is not of the official form"),
        ({"pricing": float("nan")}, "pricing is nan"),
        ({"images": 3}, "images is 3"),
        ({"images": "http://host/a.jpg"}, "images is"),
        ({"full_description": ["a", "b"]}, "full_description is"),
        ({"small_description": [1]}, "small_description is"),
        ({"customization_options": {"size": [{"value": 7}]}}, "customization_options is"),
        ({"customization_options": {"size": "small"}}, "customization_options is"),
    ],
)
def test_records_of_another_form_are_named(record: Any, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_product(record("B1", **changes), {})
    with pytest.raises(ValueError, match="A product is an object, got str"):
        parse_product("B1", {})  # type: ignore[arg-type]
    lacking = record("B1")
    del lacking["query"]
    with pytest.raises(ValueError, match="query"):
        parse_product(lacking, {})


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("items_ins_v2_1000.json", "attributes", "easy to use"),  # no list of letters
        ("items_ins_v2_1000.json", "attributes", ["soft", None]),
        ("items_ins_v2_1000.json", "instruction_attributes", "soft"),
        ("items_ins_v2_1000.json", "instruction", ["Buy"]),
        ("items_human_ins.json", "instruction", ["a mug"]),
        ("items_human_ins.json", "instruction_attributes", "red"),
        ("items_human_ins.json", "instruction_options", "red"),
    ],
)
def test_entries_of_another_form_are_named(
    tmp_path: Path, record: Any, file: str, field: str, value: Any
) -> None:
    entry = {"instruction": "a mug", "instruction_attributes": [], "instruction_options": []}
    write(tmp_path, "items_shuffle_1000.json", [record("B0"), record("B1")])
    write(tmp_path, "items_ins_v2_1000.json", {"B1": {**entry, field: value}})
    write(tmp_path, "items_human_ins.json", {"B1": [{**entry, field: value}]})
    folder, human = DataFolder(tmp_path), "human" in file
    says = "an entry of 'B1' .*" if human else "items_shuffle_1000.json, record 2: Product 'B1' .*"
    with pytest.raises(
        ValueError, match=f"{says} {field} is" if human else f"{says} {field} is .*{file}"
    ):
        folder.human_instructions() if human else folder.catalogue()


def write(folder: Path, name: str, content: Any, end: str = "") -> None:
    with (gzip.open if end else open)(folder / (name + end), "wt", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_folder_of_official_files(tmp_path: Path, record: Any, end: str) -> None:
    asins = [f"B{n}" for n in range(60)]
    write(tmp_path, "items_shuffle_1000.json", [*map(record, asins)], end)
    extra = {"attributes": ["safe"], "instruction": "Buy", "instruction_attributes": ["safe"]}
    write(tmp_path, "items_ins_v2_1000.json", dict.fromkeys(asins, extra), end)
    assert [product.asin for product in DataFolder(tmp_path).catalogue()] == asins
    assert len(DataFolder(tmp_path, 2).catalogue()) == 2
    written = [
        {"instruction": "a mug.", "instruction_attributes": ["safe"], "instruction_options": []},
        {"instruction": "x", "instruction_attributes": [], "instruction_options": []},
    ]
    write(tmp_path, "items_human_ins.json", dict.fromkeys([*asins, "GONE"], written), end)

    def ids(**settings: Any) -> set[str]:
        envs = [WebShopEnv(split, tmp_path, nouns="rules", **settings) for split in SPLITS]
        return {task_id for env in envs for task_id in env.tasks.ids}

    assert ids(goals="human") == {f"human/{asin}/0" for asin in asins}
    # few of people's goals ask for products of the small set: they are not its usual ones
    assert ids() == {f"synthetic/{asin}/{n}" for asin in asins for n in range(2)}
    (tmp_path / f"items_shuffle_1000.json{end}").rename(tmp_path / f"items_shuffle.json{end}")
    assert DataFolder(tmp_path).has_human_goals


def test_the_set_that_fits_is_chosen(tmp_path: Path, record: Any) -> None:
    for name, count in (("items_shuffle", 3), ("items_shuffle_1000", 2)):
        write(tmp_path, f"{name}.json", [record(f"B{n}") for n in range(count)])
    for name in ("items_ins_v2", "items_ins_v2_1000"):
        write(tmp_path, f"{name}.json", {})
    assert DataFolder(tmp_path).products_file == tmp_path / "items_shuffle.json"
    assert DataFolder(tmp_path, 1000).products_file == tmp_path / "items_shuffle_1000.json"
    assert DataFolder(tmp_path, 1001).products_file == tmp_path / "items_shuffle.json"


def test_missing_and_damaged_files_are_named(tmp_path: Path, record: Any) -> None:
    with pytest.raises(FileNotFoundError, match="items_shuffle_1000.json"):
        DataFolder(tmp_path)
    write(tmp_path, "items_shuffle_1000.json", json.dumps([record("B1")])[:-20])
    with pytest.raises(FileNotFoundError, match="items_ins_v2_1000.json"):
        DataFolder(tmp_path)
    write(tmp_path, "items_ins_v2_1000.json", {})
    with pytest.raises(ValueError, match="items_shuffle_1000.json is damaged or cut off"):
        DataFolder(tmp_path).catalogue()
    write(tmp_path, "items_shuffle_1000.json", {"no": "list"})
    with pytest.raises(ValueError, match="not a JSON list"):
        DataFolder(tmp_path).catalogue()
    with pytest.raises(FileNotFoundError, match="items_human_ins.json"):
        DataFolder(tmp_path).human_instructions()


@given(st.lists(st.dictionaries(st.text(), st.text()) | st.text(), max_size=8), st.data())
def test_lists_are_read_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, content: list[Any], data: st.DataObject
) -> None:
    indent = data.draw(st.sampled_from([None, 1]))
    ascii_only = data.draw(st.booleans())
    path = tmp_path_factory.getbasetemp() / "list.json"
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_folder, "_CHUNK", data.draw(st.integers(1, 20)))
        assert list(read_json_list(path)) == content


def test_an_environment_notices_changed_files(
    tmp_path: Path, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"instruction": "find a mug", "instruction_attributes": ["x"], "attributes": ["x"]}
    asins = [f"B{number}" for number in range(40)]
    write(tmp_path, "items_ins_v2_1000.json", dict.fromkeys(asins, wanted))
    write(tmp_path, "prices.json", dict.fromkeys(asins, 1.0))
    monkeypatch.chdir(tmp_path)
    counts = []
    for count in (20, 40):
        write(tmp_path, "items_shuffle_1000.json", [record(asin) for asin in asins[:count]])
        env = WebShopEnv(data_dir=".", nouns="rules", prices="prices.json")
        counts.append((len(env.shop.catalogue), len(env.tasks)))
    assert counts[0][0] == 20 and counts[1][0] == 40 and counts[0][1] < counts[1][1]
    assert WebShopEnv(data_dir=".", nouns="rules", prices="prices.json").shop is env.shop
    write(tmp_path, "prices.json", dict.fromkeys(asins, 2.5))
    assert WebShopEnv(data_dir=".", nouns="rules", prices="prices.json").shop.price("B1") == 2.5


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(data_folder, "compile_catalogue", refuse)
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    with pytest.raises(OSError, match=f"{tmp_path} cannot be written.*set PAW_CACHE_DIR"):
        data_folder.cached_catalogue("x", lambda: generate_products(4))
