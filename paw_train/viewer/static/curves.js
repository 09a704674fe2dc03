// What was measured in each update, as small curves with one brush for all of them.

import { ask } from "./api.js";
import { Chart, Overview } from "./charts.js";
import { h, inUnit, interval, number, plural, rate, replace } from "./dom.js";
import { world } from "./runs.js";
import { current, format, go, range } from "./state.js";

const WIDTHS = [1, 3, 5, 9, 17, 33, 65, 129]; // updates that a point is the mean of

// How much curves are smoothed: one control, in the address.
export class Smoothing {
  constructor() {
    this.input = h("input", { type: "range", min: 0, max: WIDTHS.length - 1, step: 1, "aria-label": "Smoothing" });
    this.words = h("output");
    this.node = h("label", { cls: "smoothing" }, h("span", null, "Smoothing"), this.input, this.words);
    this.input.addEventListener("input", () => go({ params: { sm: this.input.value === "0" ? null : WIDTHS[this.input.value] } }, { replace: true }));
  }

  // The width that the address asks for; the control follows it.
  width(params) {
    const at = Math.max(0, WIDTHS.findIndex((width) => width === Number(params.sm)));
    this.input.value = at;
    this.words.textContent = at ? `mean of ${WIDTHS[at]} updates` : "off";
    return WIDTHS[at];
  }
}

// The measurements that are looked at first; those that a run lacks are replaced by others, up to six.
const FIRST = ["success_rate", "reward_mean", "invalid_rate", "obs_nll", "entropy_mean", "kl", "steps_mean", "wm_loss", "equal_groups"];
const SIX = 6;

// Six measurements of one run or several, and the others folded away under their headings; calls `make` for each
// one's element and `unfolded` when they are opened. Those that never change have a line, no chart.
export function sections(metrics, runs, make, unfolded) {
  const fixed = metrics.filter(({ name }) => constant(runs, name));
  const drawn = metrics.filter((metric) => !fixed.includes(metric));
  const ranked = [...FIRST, ...drawn.map(({ name }) => name)].map((name) => drawn.find((metric) => metric.name === name));
  const first = [...new Set(ranked.filter(Boolean))].slice(0, SIX);
  const rest = drawn.filter((metric) => !first.includes(metric));
  const titles = [...new Set(rest.map((metric) => metric.section))];
  return [
    h("div", { cls: "grid" }, first.map(make)),
    (rest.length > 0 || fixed.length > 0) && h("details", { cls: "more", ontoggle: unfolded },
      h("summary", null, `${plural(rest.length, "more measurement")}${fixed.length ? `, ${fixed.length} that did not change` : ""}`),
      titles.map((title) => h("section", null, h("h2", null, title),
        h("div", { cls: "grid" }, rest.filter((metric) => metric.section === title).map(make)))),
      fixed.length > 0 && h("section", null, h("h2", null, "Did not change"), h("dl", { cls: "pairs" }, fixed.map((metric) => [
        h("dt", { title: metric.meaning }, metric.title), h("dd", null, inUnit(known(runs, metric.name)[0], metric.unit))])))),
  ];
}

const known = (runs, name) => runs.flatMap(({ values }) => values[name] || []).filter((v) => v !== null && v !== undefined);

function constant(runs, name) {
  const values = known(runs, name);
  return values.length > 2 && values.every((v) => v === values[0]);
}

export const seriesOf = (data, name, label = "", colour = 0) => ({
  label, colour, updates: data.update, values: data.values[name] || [],
  checks: name === "success_rate" ? data.validation.filter((v) => v.success_rate !== null) : [],
});

export const alarmBox = (alarms) => alarms.length > 0 && h("section", { cls: "alarms", role: "alert" }, h("h2", null, "Alarms"),
  h("ul", null, alarms.map((a) => h("li", null, h("b", null, a.title), ` (${a.ongoing ? `since u${a.first}` : `u${a.first} to u${a.last}`}): ${a.text}`))));

export class CurvesPage {
  constructor(page) {
    this.page = page;
    this.charts = [];
    this.cards = h("div", { cls: "cards" });
    this.alarms = h("div");
    this.smoothing = new Smoothing();
    this.strip = h("div", { cls: "strip" });
    this.kept = h("div", { cls: "kept" });
    this.grid = h("div", { cls: "sections" });
    this.notes = h("div", { cls: "notes" });
    this.settings = h("details", { cls: "settings" });
    this.node = h("div", { cls: "curves" }, this.alarms, this.cards, this.strip, h("div", { cls: "controls" }, this.kept, this.smoothing.node), this.notes, this.grid, this.settings);
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.node);
  }

  keys() {
    return { x: () => go({ params: { u: null, at: null } }), Escape: () => go({ params: { u: null, at: null } }, { replace: true }) };
  }

  described(info) {
    this.info = info;
    const result = (title, r) => r && h("div", { cls: "card" }, h("span", null, title), h("b", null, rate(r)),
      h("small", null, `${interval(r)} · ${plural(r.n, "task")}`));
    replace(this.alarms, alarmBox(info.alarms));
    replace(this.cards,
      result("Success before RL", info.before), result("Success after RL", info.after),
      h("div", { cls: "card" }, h("span", null, "Updates"), h("b", null, info.planned ? `${info.updates} / ${info.planned}` : number(info.updates)),
        h("small", null, info.state)),
      h("div", { cls: "card" }, h("span", null, "Method"), h("b", null, (info.algorithm || "–").toUpperCase()), h("small", null, `world model: ${world(info.world_model)}`)),
      h("div", { cls: "card" }, h("span", null, "Episodes kept"), h("b", null, number(info.episodes)),
        h("small", null, `${plural(info.turns, "turn")}${info.with_tokens ? "" : " · no token records"}`)));
    replace(this.notes, info.notes.slice(0, 8).map((note) => h("p", { cls: "note" }, note)));
    replace(this.settings, h("summary", null, "Settings of the run"), h("pre", null, JSON.stringify(info.settings, null, 2)));
    this.drawKept();
  }

  show(state) {
    this.state = state;
    if (!this.data) this.refresh();
    else this.draw();
  }

  async refresh() {
    if (this.asking) return;
    this.asking = true;
    try {
      this.data = await ask("curves", { run: this.page.name });
    } finally {
      this.asking = false;
    }
    this.build();
    this.draw();
  }

  build() {
    const { metrics } = this.data;
    const key = metrics.map((metric) => metric.name).join();
    if (key === this.built) {
      for (const chart of this.charts) chart.update([seriesOf(this.data, chart.name)]);
      this.overview?.update(this.data);
      return;
    }
    this.built = key;
    const brush = {
      hover: (u) => this.charts.forEach((chart) => chart.hover(u)),
      choose: (from, to) => go({ params: { u: `${from}-${to}` } }),
      clear: () => go({ params: { u: null } }),
    };
    this.charts = [];
    replace(this.grid, sections(metrics, [this.data], (metric) => {
      const chart = new Chart(metric, [seriesOf(this.data, metric.name)], brush);
      this.charts.push(chart);
      return chart.node;
    }, () => this.draw()));
    if (!metrics.length) replace(this.grid, h("p", { cls: "muted" }, "No update has been measured yet; curves appear here as they come."));
    this.overview = metrics.length ? new Overview(this.data, brush) : null;
    replace(this.strip, this.overview?.node);
  }

  draw() {
    if (!this.data || !this.node.isConnected) return;
    const { params } = this.state || current();
    const chosen = range(params);
    const width = this.smoothing.width(params);
    for (const chart of this.charts) chart.draw(chosen, width);
    this.overview?.draw(chosen);
    this.drawKept();
  }

  // The updates whose episodes were kept, as links to their groups.
  drawKept() {
    if (!this.info) return;
    const chosen = range((this.state || current()).params);
    const kept = Object.entries(this.info.kept).map(([u, n]) => [Number(u), n]);
    const inside = kept.filter(([u]) => !chosen || (u >= chosen[0] && u <= chosen[1]));
    const episodes = inside.reduce((sum, [, n]) => sum + n, 0);
    const link = (tab, u, words, title) => h("a", { cls: "chip", title, href: format({ run: this.page.name, tab, params: { u } }) }, words);
    const all = chosen ? `${chosen[0]}-${chosen[1]}` : null;
    replace(this.kept,
      chosen && h("span", { cls: "chosen" }, `Updates ${chosen[0]} to ${chosen[1]}`,
        h("button", { cls: "chip", onclick: () => go({ params: { u: null } }) }, "show all ×")),
      h("span", { cls: "muted" }, kept.length ? "Episodes kept:" : this.info.indexing ? "Reading the episodes …" : "No rollouts were kept."),
      episodes > 0 && link("groups", all, "groups"), episodes > 0 && link("episodes", all, plural(episodes, "episode")),
      inside.slice(0, 40).map(([u, n]) => link("groups", `${u}-${u}`, `u${u}`, `${plural(n, "episode")} of update ${u}`)),
      inside.length > 40 && h("span", { cls: "muted" }, `and ${plural(inside.length - 40, "more update")}`));
  }
}
