"""A person shops: mouse and keyboard in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paw_gym.envs.webshop.env import WebShopEnv


def task_and_solution(env: WebShopEnv) -> tuple[str, list[str]]:
    for index in range(len(env.tasks)):
        env.reset(options={"task_index": index})
        actions = env.reference_solution()
        if len(env.task.data.options) == 2 and "click[next >]" not in actions:
            return env.task.id, actions
    raise AssertionError("no such task")


def test_a_purchase_by_mouse_and_keyboard(serve: Any, browser: Any) -> None:
    server = serve("webshop")
    env = WebShopEnv(split="test")
    task_id, actions = task_and_solution(env)
    words, asin = actions[0][7:-1], actions[1][6:-1].upper()
    first, second = (action[6:-1] for action in actions[2:4])

    browser.open(server.url)
    browser.run("document.querySelector('#split').value = 'test'")
    browser.click("#task_id")
    browser.type(task_id)
    browser.key("Enter")
    # the search field has the focus: typing needs no click
    browser.wait_for("document.activeElement && document.activeElement.id === 'search_input'")
    instruction = browser.run("document.querySelector('#instruction').textContent")
    browser.type(words)
    browser.key("Enter")
    browser.wait_for("document.querySelectorAll('.item').length > 0")
    results = browser.run("location.href")

    browser.click(f'a[data-asin="{asin}"]')
    browser.wait_for("document.querySelectorAll('.chip').length > 1")
    # back and forward, as people do
    browser.back()
    browser.wait_for(f"location.href === {results!r}")
    browser.click(f'a[data-asin="{asin}"]')

    def chip(value: str) -> str:
        return f"[...document.querySelectorAll('.chip')].find(e => e.textContent === {value!r})"

    checked = "[...document.querySelectorAll('.chip[aria-checked=true]')].map(e => e.textContent)"
    browser.wait_for(f"{chip(first)} !== undefined")
    browser.run(f"{chip(first)}.id = 'by-mouse'")
    browser.click("#by-mouse")
    browser.wait_for(f"{checked}.includes({first!r})")
    browser.run(f"{chip(second)}.focus()")
    browser.key("Enter")  # by keyboard
    browser.wait_for(f"{checked}.length === 2")
    browser.reload()
    assert sorted(browser.run(checked)) == sorted([first, second])
    # a page about the product keeps what was chosen
    browser.click(".tabs a:nth-child(2)")
    browser.wait_for("document.querySelector('.tabs a[aria-current]') !== null")
    assert sorted(browser.run(checked)) == sorted([first, second])
    browser.size(400, 860)
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    browser.size(1200, 900)

    browser.click("#buy")
    score = browser.wait_for("document.querySelector('#score')?.textContent")
    browser.reload()
    assert browser.run("document.querySelector('#score').textContent") == score
    # what is bought is bought: going back and buying again leads to the same score
    browser.back()
    browser.wait_for("location.pathname.includes('/item/')")
    browser.wait_for("document.querySelector('#buy, #score') !== null")
    if browser.run("document.querySelector('#buy') !== null"):  # kept by the browser
        browser.click("#buy")
    assert browser.wait_for("document.querySelector('#score')?.textContent") == score

    _, info = env.reset(options={"task_id": task_id})
    assert info["instruction"] == instruction
    for action in (actions[0], actions[1], f"click[{first}]", f"click[{second}]", "click[buy now]"):
        observation, reward, _, _, _ = env.step(action)
    assert score == str(reward) == "1.0"
    assert re.search(r"\[SEP\] 1\.0 \[SEP\]", observation)


def test_nothing_comes_from_elsewhere_and_scripts_stay_out(
    serve: Any, browser: Any, official_shop: Path
) -> None:
    """Real products hold addresses of other hosts, and their texts may hold anything."""
    server = serve("webshop", "--data-dir", str(official_shop), "--nouns", "rules")
    browser.open(server.url)
    browser.click("#start")
    browser.wait_for("document.activeElement && document.activeElement.id === 'search_input'")
    browser.type("<script>document.title='hacked'</script> shirt")
    browser.key("Enter")
    browser.wait_for("document.querySelectorAll('.item').length > 0")
    browser.click(".item a")
    browser.wait_for("document.querySelector('#buy') !== null")
    loaded = browser.run("performance.getEntriesByType('resource').map(e => e.name)")
    assert all(name.startswith((server.url, "data:")) for name in loaded)
    assert "hacked" not in browser.run("document.title")
    assert browser.run("document.querySelectorAll('script').length") == 0
