// A list of any length: only the rows in sight exist, and only their pages are asked for.

import { h } from "./dom.js";

const PAGE = 200;
const TALLEST = 12e6; // pixels; browsers draw no taller element

export class VirtualList {
  // fetch(offset, limit, around) -> {total, offset, at, rows}; draw(row, index) -> element
  constructor({ rowHeight, fetch, draw, onSelect, keyOf, onTotal }) {
    Object.assign(this, { rowHeight, fetch, draw, onSelect, keyOf, onTotal });
    this.space = h("div", { cls: "vspace" });
    this.node = h("div", { cls: "vlist", role: "listbox", tabindex: "0" }, this.space);
    this.node.addEventListener("scroll", () => this.schedule(), { passive: true });
    this.node.addEventListener("click", (event) => {
      const row = event.target.closest("[data-index]");
      if (row) this.select(Number(row.dataset.index));
    });
    new ResizeObserver(() => this.schedule()).observe(this.node);
    this.clear();
  }

  clear() {
    this.version = (this.version || 0) + 1;
    this.pages = new Map();
    this.waiting = new Set();
    this.total = 0;
    this.index = -1;
  }

  // Shows another list from its start, or around the row of a key.
  async load(key = null) {
    this.clear();
    const version = this.version;
    const first = await this.fetch(0, PAGE, key);
    if (version !== this.version) return;
    this.take(first);
    this.node.scrollTop = 0;
    if (first.at !== null && first.at !== undefined) {
      this.mark(Math.min(this.total - 1, first.at + Math.floor(this.node.clientHeight / this.rowHeight / 2)));
      this.index = first.at;
    }
    this.paint();
  }

  // The same list after the run went on: what is in sight is asked for again, nothing jumps.
  async refresh(key = null) {
    const version = ++this.version;
    const [from] = this.window();
    const offset = Math.floor(from / PAGE) * PAGE;
    const page = await this.fetch(offset, PAGE, null);
    if (version !== this.version) return;
    this.pages = new Map();
    this.waiting = new Set();
    this.take(page);
    if (key !== null && this.index < 0) {
      const found = await this.fetch(0, 1, key);
      if (version === this.version && found.at !== null) this.mark(found.at);
    }
    this.paint();
  }

  take(page) {
    const grown = page.total !== this.total;
    this.total = page.total;
    // an answer "around" a row can start anywhere: it is cut into whole pages
    for (let start = page.offset; start < page.offset + page.rows.length; ) {
      const number = Math.floor(start / PAGE);
      const end = Math.min((number + 1) * PAGE, page.offset + page.rows.length);
      const whole = end === (number + 1) * PAGE || end === page.total;
      if (start === number * PAGE && whole)
        this.pages.set(number, page.rows.slice(start - page.offset, end - page.offset));
      start = end;
    }
    const height = Math.min(this.total * this.rowHeight, TALLEST);
    this.space.style.setProperty("height", `${height}px`);
    if (grown && this.onTotal) this.onTotal(page.total);
  }

  row(index) {
    const page = this.pages.get(Math.floor(index / PAGE));
    return page && page[index % PAGE];
  }

  // [first, last) in sight, and the pixel where the first would begin
  window() {
    const seen = this.node.clientHeight || 600;
    const full = this.total * this.rowHeight;
    const stretch = full > TALLEST ? (full - seen) / (TALLEST - seen) : 1;
    const top = this.node.scrollTop * stretch;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - 2);
    const last = Math.min(this.total, Math.ceil((top + seen) / this.rowHeight) + 2);
    return [first, last, this.node.scrollTop - top];
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const [first, last, shift] = this.window();
    const rows = [];
    for (let index = first; index < last; index += 1) {
      const row = this.row(index);
      const node = row ? this.draw(row, index) : h("div", { cls: "row waiting" });
      node.dataset.index = index;
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", index === this.index);
      node.style.setProperty("top", `${index * this.rowHeight + shift}px`);
      node.style.setProperty("height", `${this.rowHeight}px`);
      rows.push(node);
      if (!row) this.want(Math.floor(index / PAGE));
    }
    this.space.replaceChildren(...rows);
  }

  async want(number) {
    if (this.waiting.has(number)) return;
    this.waiting.add(number);
    const version = this.version;
    try {
      const page = await this.fetch(number * PAGE, PAGE, null);
      if (version === this.version) {
        this.take(page);
        this.schedule();
      }
    } finally {
      if (version === this.version) this.waiting.delete(number);
    }
  }

  mark(index) {
    this.index = index;
    const seen = this.node.clientHeight || 600;
    const full = this.total * this.rowHeight;
    const stretch = full > TALLEST ? (full - seen) / (TALLEST - seen) : 1;
    const top = this.node.scrollTop * stretch;
    const at = index * this.rowHeight;
    if (at < top) this.node.scrollTop = at / stretch;
    else if (at + this.rowHeight > top + seen)
      this.node.scrollTop = (at + this.rowHeight - seen + 1) / stretch;
  }

  async select(index) {
    if (!this.total) return;
    const wanted = Math.max(0, Math.min(this.total - 1, index));
    this.mark(wanted);
    if (!this.row(wanted)) await this.want(Math.floor(wanted / PAGE));
    this.paint();
    const row = this.row(wanted);
    if (row && this.index === wanted) this.onSelect(row, wanted);
  }

  move(by) {
    return this.select(this.index < 0 ? 0 : this.index + by);
  }

  // Marks the row of a key if it is among those at hand; says whether it is.
  markKey(key) {
    const here = this.row(this.index);
    if (here && this.keyOf(here) === key) return true;
    for (const [number, rows] of this.pages) {
      const found = rows.findIndex((row) => this.keyOf(row) === key);
      if (found >= 0) {
        this.mark(number * PAGE + found);
        this.schedule();
        return true;
      }
    }
    return false;
  }
}
