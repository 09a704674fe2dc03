// Several runs over one another: curves, results, and what they set differently.

import { ask } from "./api.js";
import { Chart } from "./charts.js";
import { Smoothing, sections, seriesOf } from "./curves.js";
import { day, h, interval, number, plural, rate, replace } from "./dom.js";
import { chosenRuns, current, format, go, range, runsParam } from "./state.js";

const COLOURS = 8;
export const MOST_RUNS = 12;

export class OverlayPage {
  constructor(app) {
    this.app = app;
    this.name = null;
    this.charts = [];
    this.smoothing = new Smoothing();
    this.legend = h("div", { cls: "legend-runs", role: "list", "aria-label": "Runs" });
    this.range = h("span");
    this.grid = h("div", { cls: "sections" });
    this.tables = h("div");
    this.node = h("div", { cls: "curves overlay" },
      h("div", { cls: "controls" }, this.legend, this.range, this.smoothing.node), this.grid, this.tables);
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.node);
  }

  keys() {
    return { x: () => go({ params: { u: null, q: null } }), Escape: () => go({ params: { u: null, q: null } }, { replace: true }) };
  }

  show(state) {
    const names = chosenRuns(state.params).slice(0, MOST_RUNS);
    const same = runsParam(names) === this.shown;
    this.names = names;
    this.shown = runsParam(names);
    if (!same) this.load();
    else if (state.params.q !== this.words) this.build();
    else this.draw();
  }

  async load() {
    const wanted = this.shown;
    try {
      const [curves, infos, found] = await Promise.all([
        Promise.all(this.names.map((run) => ask("curves", { run }))),
        Promise.all(this.names.map((run) => ask("state", { run }))),
        ask("differences", { run: this.names }),
      ]);
      if (wanted !== this.shown) return;
      Object.assign(this, { curves, infos, differences: found.differences });
    } catch (error) {
      replace(this.grid, h("p", { cls: "loading" }, error.message, " ", h("a", { href: "#/" }, "All runs")));
      return;
    }
    this.build();
  }

  async news(changed) {
    if (!changed.runs) return;
    this.app.runs = (await ask("runs")).runs;
    await this.load();
  }

  colour(i) {
    return i % COLOURS;
  }

  build() {
    this.words = current().params.q;
    replace(this.legend, this.names.map((name, i) => h("span", { cls: "chip", role: "listitem" },
      h("i", { cls: `swatch c${this.colour(i)}` }), h("a", { href: format({ run: name, params: {} }) }, name),
      this.names.length > 1 && h("button", { cls: "remove", title: `without ${name}`, "aria-label": `without ${name}`, onclick: () => this.remove(name) }, "×"))),
    h("a", { cls: "chip plain", href: "#/" }, "all runs"));
    const wanted = (this.words || "").toLowerCase();
    const all = [...new Map(this.curves.flatMap(({ metrics }) => metrics).map((metric) => [metric.name, metric])).values()];
    const shown = all.filter(({ name, title }) => `${name} ${title.toLowerCase()}`.includes(wanted));
    const brush = {
      hover: (u) => this.charts.forEach((chart) => chart.hover(u)),
      choose: (from, to) => go({ params: { u: `${from}-${to}` } }),
      clear: () => go({ params: { u: null } }),
    };
    this.charts = [];
    replace(this.grid, sections(shown, this.curves, (metric) => {
      const series = this.curves.map((data, i) => seriesOf(data, metric.name, this.names[i], this.colour(i)));
      const chart = new Chart(metric, series.filter((one) => one.values.length), brush);
      this.charts.push(chart);
      return chart.node;
    }, () => this.draw()), all.length > 0 && !shown.length && h("p", { cls: "muted" }, "No measurement has this in its name."));
    replace(this.tables, this.results(), this.settings());
    this.draw();
  }

  remove(name) {
    go({ params: { runs: runsParam(this.names.filter((other) => other !== name)) } }, { replace: true });
  }

  draw() {
    if (!this.curves || !this.node.isConnected) return;
    const { params } = current();
    const chosen = range(params);
    const width = this.smoothing.width(params);
    for (const chart of this.charts) chart.draw(chosen, width);
    this.smoothing.node.hidden = !this.charts.length;
    replace(this.range, chosen && h("span", { cls: "chosen" }, `Updates ${chosen[0]} to ${chosen[1]}`,
      h("button", { cls: "chip", onclick: () => go({ params: { u: null } }) }, "show all ×")));
  }

  head(title) {
    return h("thead", null, h("tr", null, h("th", null, title), this.names.map((name, i) =>
      h("th", { title: name }, h("i", { cls: `swatch c${this.colour(i)}` }), name))));
  }

  results() {
    const row = (title, cell) => {
      const cells = this.infos.map(cell);
      return cells.some((value) => value && value !== "–") && h("tr", null, h("th", null, title), cells.map((value) => h("td", { cls: "num" }, value || "–")));
    };
    const whole = (result) => result && [h("b", null, rate(result)), h("small", null, ` ${interval(result)} · ${plural(result.n, "task")}`)];
    const types = [...new Set(this.infos.flatMap((info) => (info.evaluation?.types || []).map((type) => type.name)))];
    return h("section", null, h("h2", null, "Results"), box(h("table", { cls: "plain" }, this.head(""), h("tbody", null,
      row("environment", (info) => info.env), row("panel", (info) => info.panel),
      row("success before RL", (info) => whole(info.before)),
      row("success", (info) => whole(info.after)),
      row("score", (info) => info.score !== null && number(info.score)),
      row("cost", (info) => info.cost),
      row("last return in training", (info) => number(info.reward_mean)),
      row("updates", (info) => info.kind === "training" && (info.planned ? `${info.updates} / ${info.planned}` : String(info.updates))),
      row("alarms", (info) => info.alarms.map((alarm) => alarm.title).join("; ")),
      row("date", (info) => day(info.date)),
      types.map((type) => row(type, (info) => whole(info.evaluation?.types.find((other) => other.name === type))))))));
  }

  settings() {
    return h("section", null, h("h2", null, "Settings that differ"),
      this.names.length < 2 ? h("p", { cls: "muted" }, "One run alone differs from none.")
        : !this.differences.length ? h("p", { cls: "muted" }, "All settings are equal.")
          : box(h("table", { cls: "plain differences" }, this.head("setting"), h("tbody", null, this.differences.map(({ key, values }) =>
            h("tr", null, h("th", null, h("code", null, key)), values.map((value) => h("td", null, value === null ? h("span", { cls: "muted" }, "–") : h("code", null, value)))))))));
  }
}

const box = (table) => h("div", { cls: "scroll", tabindex: "0" }, table);
