"""Times of the viewer on a run of 100,000 transitions, measured in headless Chromium.

    python benchmarks/viewer.py --transitions 100000

First paint: from the start of the navigation to the first contentful paint, and to the first row of a
list, without an index (cold) and with one (warm). Then: how long filters and jumps take until their
rows are shown, and how long frames take while the list is scrolled.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import Service, cpu_seconds
from viewer_run import write_run

sys.path += [str(Path(__file__).parents[1] / "tests" / name) for name in ("viewer", "support")]
from browser import CHROMIUM
from pages import Pages

_PAINT = """performance.getEntriesByName("first-contentful-paint")[0]?.startTime"""
_ROW = """new Promise((done) => { const look = () => document.querySelector(".row:not(.waiting)")
    ? done(performance.now()) : requestAnimationFrame(look); look(); })"""
_CHANGE = """new Promise((done) => { const count = document.querySelector(".count");
    const start = performance.now();
    const look = () => /^[\\d,]+ turns?$/.test(count.textContent) && !document.querySelector(".row.waiting")
        && location.hash.includes(%r)
        ? done(performance.now() - start) : setTimeout(look, 1);
    %s; requestAnimationFrame(look); })"""
_SCROLL = """new Promise((done) => { const list = document.querySelector(".vlist"); const times = [];
    let last = performance.now(); let turn = 0; let blank = 0;
    const step = () => { const now = performance.now(); times.push(now - last); last = now;
        if (document.querySelector(".row.waiting")) blank += 1;
        list.scrollTop += 600; turn += 1;
        if (turn < 240) requestAnimationFrame(step); else done([times, blank]); };
    requestAnimationFrame(step); })"""


def promise(pages: Any, script: str) -> Any:
    """The value of a promise on the page."""
    answer = pages._call(
        "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
    )
    if "exceptionDetails" in answer:
        raise RuntimeError(str(answer["exceptionDetails"]))
    return answer["result"].get("value")


def open_page(run: Path, tab: str) -> tuple[Service, Any, Any]:
    """Starts server and browser and reports the first paint."""
    server = Service("view", str(run))
    ready = time.perf_counter() - server.started
    folder = tempfile.TemporaryDirectory()
    pages = Pages(Path(folder.name))
    pages.size(1360, 860)
    pages._call("Page.navigate", url=f"{server.url}/#/{run.name}/{tab}")
    row = promise(pages, _ROW)
    paint = pages.run(_PAINT)
    print(f"| {ready:.2f} s | {paint / 1000:.2f} s | {row / 1000:.2f} s |")
    return server, pages, folder


def main() -> None:
    """Writes the run, opens it, reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--run", type=Path, help="a run that is there already")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("This needs Chromium (Debian: apt install chromium).")
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run or Path(scratch) / "large"
        if options.run is None:
            made = write_run(run, options.transitions)
            size = sum(p.stat().st_size for p in run.rglob("*") if p.is_file()) / 2**20
            print(f"{made:,} transitions, {size:.0f} MB")
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, load {load:.1f}\n")
        print("| server answers after | first contentful paint | first row |")
        print("| --- | --- | --- |")
        server, pages, folder = open_page(run, "turns")
        begun, spent = time.perf_counter(), cpu_seconds(server.pid)
        reading = "document.querySelector('.status').textContent.startsWith('reading')"
        while pages.run(reading) or pages.run("window.paw.seen.indexing"):
            time.sleep(0.2)
        indexed, spent = time.perf_counter() - begun, cpu_seconds(server.pid) - spent
        print(f"\nWhole index: {indexed:.1f} s after the first row ({spent:.1f} s of CPU).\n")
        time.sleep(3)
        print("| change | until its rows stand |\n| --- | --- |")
        for label, mark, script in (
            ("filter: invalid", "invalid", "document.querySelector('[data-filter=invalid]').click()"),
            ("filter: and failed", "failed", "document.querySelector('[data-value=failed]').click()"),
            ("search: candle 3", "candle", f"location.hash = '#/{run.name}/turns?q=candle+3'"),
            ("highest entropy first", "entropy", f"location.hash = '#/{run.name}/turns?sort=entropy'"),
            ("all again", "turns", f"location.hash = '#/{run.name}/turns'"),
        ):  # fmt: skip
            print(f"| {label} | {promise(pages, _CHANGE % (mark, script)):.0f} ms |")
        jump = promise(
            pages, _CHANGE % ("turns", "document.querySelector('.vlist').scrollTop = 2e6")
        )
        print(f"| jump to row 40,000 | {jump:.0f} ms |")
        times, blank = promise(pages, _SCROLL)
        times = sorted(times[5:])
        print(
            f"\nScrolled 240 frames of 600 px: median {statistics.median(times):.1f} ms a frame, "
            f"95th percentile {times[int(0.95 * len(times))]:.1f} ms; "
            f"{blank} frames showed a row that was still fetched."
        )
        pages.close(), server.stop(), folder.cleanup()


if __name__ == "__main__":
    main()
