// Groups, episodes or turns in a list, and the chosen one beside it.

import { ask, filters } from "./api.js";
import { h, number, plural, replace, signed, tone } from "./dom.js";
import { EpisodeView } from "./episode.js";
import { GroupView } from "./group.js";
import { FILTERS, current, go } from "./state.js";
import { VirtualList } from "./virtual.js";

const ROWS = { groups: 66, episodes: 58, turns: 50 };
const SORTS = [
  ["order", "in order"], ["newest", "newest first"], ["entropy", "highest entropy"], ["surprise", "highest surprise"],
  ["return", "lowest return"], ["-return", "highest return"], ["advantage", "lowest advantage"], ["-advantage", "highest advantage"],
  ["steps", "shortest"], ["-steps", "longest"],
];
const PHASES = { before: "before RL", training: "training", after: "after RL", other: "evaluation" };

export class ListPage {
  constructor(page) {
    this.page = page;
    this.count = h("output", { cls: "count", "aria-live": "polite" });
    this.bar = h("div", { cls: "filters", role: "group", "aria-label": "Filters" });
    this.pane = h("aside", { cls: "pane" });
    this.detail = h("section", { cls: "detail", tabindex: "-1", "aria-label": "Episode" });
    this.node = h("div", { cls: "split" }, h("div", { cls: "left" }, this.bar, this.pane), this.detail);
    this.episode = new EpisodeView(page, this.detail);
    this.group = new GroupView(page, this.detail);
  }

  described(info) {
    const known = this.info;
    this.info = info;
    // what is being clicked or typed stays; the next news of the run, or the change itself, draws the bar
    if (this.state && !(known && this.bar.matches(":active, :focus-within"))) this.drawBar();
  }

  show(state) {
    const before = this.state;
    this.state = state;
    const { tab, params } = state;
    const query = (s) => s && [s.tab, ...FILTERS.map((key) => s.params[key]), s.params.sort].join("\u0000");
    if (query(before) !== query(state) || !this.list) {
      if (!this.list || before.tab !== tab) this.build(tab);
      this.drawBar();
      this.count.textContent = "…";
      this.list.load(this.selectedKey()).then(() => { this.landed(); this.first(); }, (error) => this.failed(error));
    } else if (this.selectedKey() && !this.list.markKey(this.listKey())) this.list.load(this.selectedKey());
    else this.list.schedule();
    this.open(params);
  }

  build(tab) {
    const draw = { groups: groupRow, episodes: episodeRow, turns: turnRow }[tab];
    this.list = new VirtualList({
      rowHeight: ROWS[tab],
      fetch: (offset, limit, around) => this.fetch(tab, offset, limit, around),
      draw,
      keyOf: (row) => (tab === "turns" ? `${row.key}:${row.step}` : row.key),
      onTotal: () => this.landed(),
      onSelect: (row) => this.choose(tab, row),
    });
    replace(this.pane, this.list.node);
  }

  async fetch(tab, offset, limit, around) {
    const found = await ask("list", { run: this.page.name, view: tab, offset, limit, around, ...filters(current().params) });
    this.page.answered(found);
    return found;
  }

  choose(tab, row) {
    const turn = tab === "turns" ? row.step : null;
    go({ params: { ep: row.key, turn } }, { replace: true });
  }

  selectedKey() {
    const { ep, turn } = this.state.params;
    if (!ep) return null;
    return this.state.tab === "turns" ? `${ep}:${turn || 0}` : ep;
  }

  // Among groups, the row is the group's first episode, whichever of them is open.
  listKey() {
    const { ep } = this.state.params;
    return this.state.tab === "groups" ? this.groupFirst?.get(ep) || ep : this.selectedKey();
  }

  landed() {
    const words = { groups: "group", episodes: "episode", turns: "turn" }[this.state.tab];
    this.count.textContent = plural(this.list.total, words);
    this.list.node.classList.toggle("empty", this.list.total === 0);
    if (this.list.total === 0) this.list.node.dataset.words = this.filtered() ? "Nothing passes these filters." : "No episode yet.";
  }

  // A list opens with its first row, also one whose rows come later.
  first() {
    if (!current().params.ep && this.list.total > 0) this.list.select(0);
  }

  failed(error) {
    this.count.textContent = error.message;
  }

  filtered() {
    return FILTERS.some((key) => this.state.params[key]);
  }

  refresh() {
    if (!this.list || !this.state || !this.node.isConnected) return;
    this.list.refresh(this.selectedKey()).then(() => { this.landed(); this.first(); }, (error) => this.failed(error));
    if (!this.detail.dataset.key) this.open(current().params);
    else this.episode.again();
  }

  open(params) {
    const view = this.state.tab === "groups" ? this.group : this.episode;
    if (!params.ep) {
      this.detail.dataset.key = "";
      replace(this.detail, h("div", { cls: "blank" }, h("p", null, "Choose a row, or press ", h("kbd", null, "j"), "."),
        h("p", { cls: "muted" }, h("kbd", null, "?"), " shows all keys.")));
      return;
    }
    view.show(params);
  }

  keys() {
    const toggle = (name, on) => () => {
      const value = current().params[name];
      go({ params: { [name]: value === on ? null : on } }, { replace: true });
    };
    const move = (by) => () => this.list.move(by);
    const groups = this.state?.tab === "groups" || current().tab === "groups";
    return {
      j: move(1), ArrowDown: move(1), k: move(-1), ArrowUp: move(-1), PageDown: move(10), PageUp: move(-10),
      g: () => this.list.select(0), Home: () => this.list.select(0),
      G: () => this.list.select(this.list.total - 1), End: () => this.list.select(this.list.total - 1),
      Enter: () => {
        const { ep } = current().params;
        if (!ep) this.list.move(1);
        else if (current().tab !== "episodes") go({ tab: "episodes" });
        else this.detail.focus();
      },
      n: () => this.episode.step(1), p: () => this.episode.step(-1),
      l: () => this.episode.sibling(1), ArrowRight: () => this.episode.sibling(1),
      h: () => this.episode.sibling(-1), ArrowLeft: () => this.episode.sibling(-1),
      s: () => go({ tab: groups ? "episodes" : "groups" }),
      w: toggle("wm", "0"), r: toggle("resp", "1"),
      m: () => this.episode.toggle("details.sent"), o: () => this.episode.toggle("details.prompt"), a: () => this.episode.toggle("details.admissible"),
      x: () => go({ params: Object.fromEntries(FILTERS.map((key) => [key, null])) }),
      Escape: () => {
        if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
        else go({ params: { ep: null, turn: null } }, { replace: true });
      },
    };
  }

  drawBar() {
    const { params, tab } = this.state;
    const set = (change) => go({ params: { ...change, turn: null } });
    const info = this.info || { phases: {}, outcomes: {}, environments: {}, types: {}, with_tokens: 0 };
    const select = (key, label, choices) => {
      const node = h("select", { "aria-label": label, title: label, data: { filter: key } }, choices.map(([value, words]) =>
        h("option", { value, selected: (params[key] || "") === value }, words)));
      node.addEventListener("change", () => { node.blur(); set({ [key]: node.value === "order" ? null : node.value || null }); });
      node.classList.toggle("on", Boolean(params[key]));
      return node;
    };
    const chip = (key, value, words, title) => {
      const listed = key === "outcome" ? (params[key] || "").split(",").filter(Boolean) : [params[key]];
      const on = listed.includes(value);
      const toggled = key === "outcome" ? (on ? listed.filter((v) => v !== value) : [...listed, value]).join(",") : on ? null : value;
      return h("button", { cls: "chip", "aria-pressed": String(on), title, data: { filter: key, value }, onclick: () => set({ [key]: toggled || null }) }, words);
    };
    const entropy = h("input", { type: "number", min: 0, step: "any", placeholder: "entropy ≥", value: params.entropy || "",
      "aria-label": "least action entropy, nats", title: "least action entropy, nats", data: { filter: "entropy" } });
    entropy.classList.toggle("on", Boolean(params.entropy));
    entropy.addEventListener("change", () => set({ entropy: entropy.value || null }));
    entropy.addEventListener("keydown", (event) => event.key === "Enter" && entropy.blur());
    const count = (n) => (n === undefined ? "" : ` ${n.toLocaleString("en")}`);
    replace(this.bar,
      h("div", { cls: "line" },
        Object.entries(info.outcomes).map(([name, n]) => chip("outcome", name, [h("i", { cls: `o ${name}` }), name, h("small", null, count(n))], `episodes: ${name}`)),
        chip("invalid", "1", "invalid", tab === "turns" ? "turns with an invalid action" : "episodes with an invalid action"),
        info.with_tokens > 0 && chip("selected", "1", "◆ selected", "selected by the world model (highest action entropy)")),
      h("div", { cls: "line" },
        Object.keys(info.phases).length > 1 && select("phase", "Part of the run", [["", "all parts"], ...Object.keys(info.phases).map((p) => [p, PHASES[p] || p])]),
        Object.keys(info.environments).length > 1 && select("env", "Environment", [["", "all environments"], ...Object.entries(info.environments).map(([e, n]) => [e, `${e.replace("paw_gym/", "")} (${n})`])]),
        Object.keys(info.types).length > 1 && select("type", "Task type", [["", "all task types"], ...Object.entries(info.types).map(([t, n]) => [t, `${t} (${n})`])]),
        info.with_tokens > 0 && entropy),
      h("div", { cls: "line" }, this.count,
        select("sort", "Order", SORTS.filter(([s]) => info.with_tokens > 0 || !/entropy|surprise|advantage/.test(s)).map(([value, words]) => [value === "order" ? "" : value, words])),
        params.u && h("button", { cls: "chip", "aria-pressed": "true", title: "all updates", onclick: () => set({ u: null }) }, `updates ${params.u.replace("-", "–")} ×`),
        params.q && h("button", { cls: "chip", "aria-pressed": "true", title: "no search", onclick: () => set({ q: null }) }, `“${params.q}” ×`),
        this.filtered() && h("button", { cls: "chip plain", title: "x", onclick: () => set(Object.fromEntries(FILTERS.map((key) => [key, null]))) }, "clear all")));
  }
}

export const origin = (row) => (row.phase === "training" ? (row.update === null ? "training" : `u${row.update}`) : PHASES[row.phase] || row.phase);

function groupRow(row) {
  return h("div", { cls: "row group" },
    h("div", { cls: "r1" }, h("b", null, row.instruction || row.task_id), h("span", { cls: "origin" }, origin(row))),
    h("div", { cls: "r2" }, h("span", { cls: "dots" }, row.outcomes.split(",").slice(0, 24).map((o) => h("i", { cls: `o ${o}`, title: o }))),
      h("span", null, `return ${number(row.ret)}`), row.lam !== null && h("span", { title: "weight of the group, Eq. 10" }, `λ ${number(row.lam)}`)),
    h("div", { cls: "r3" }, row.task_type));
}

function episodeRow(row) {
  return h("div", { cls: "row episode" },
    h("div", { cls: "r1" }, h("i", { cls: `o ${row.outcome}`, title: row.outcome }), h("b", null, row.instruction || row.task_id), h("span", { cls: "origin" }, origin(row))),
    h("div", { cls: "r2" }, h("span", null, plural(row.steps, "turn")), h("span", null, `return ${number(row.ret)}`),
      row.advantage !== null && h("span", { cls: tone(row.advantage), title: "advantage" }, `A ${signed(row.advantage, 2)}`),
      row.invalid > 0 && h("span", { cls: "bad" }, `${row.invalid} invalid`),
      row.entropy !== null && h("span", { title: "highest action entropy of a turn" }, `H ${number(row.entropy, 2)}`)));
}

function turnRow(row) {
  return h("div", { cls: "row turn" },
    h("div", { cls: "r1" }, h("i", { cls: `o ${row.outcome}`, title: row.outcome }),
      h("code", { cls: row.invalid ? "invalid" : "" }, row.action || "(no action)"),
      row.reward !== 0 && h("span", { cls: tone(row.reward) }, signed(row.reward)),
      row.selected === true && h("span", { cls: "sel", title: "selected by the world model" }, "◆"),
      h("span", { cls: "origin" }, row.entropy !== null && h("span", { title: "action entropy" }, `H ${number(row.entropy, 2)} · `), `${origin(row)} · ${row.step + 1}`)),
    h("div", { cls: "r3" }, row.observation));
}
