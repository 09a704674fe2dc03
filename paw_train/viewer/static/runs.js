// All runs of a folder, a row each.

import { ask } from "./api.js";
import { h, number, percent, replace, s } from "./dom.js";
import { format } from "./state.js";

const rate = (result) => (result ? percent(result.success_rate) : "–");
const spread = (result) =>
  result && Array.isArray(result.ci95)
    ? `95 % interval ${percent(result.ci95[0])} to ${percent(result.ci95[1])}, ${result.n} tasks` : "";

export class RunsPage {
  constructor(app) {
    this.app = app;
    this.name = null;
    this.index = -1;
    this.body = h("tbody");
    this.node = h("div", { cls: "page runs" },
      h("h1", null, app.folder),
      h("table", null,
        h("thead", null, h("tr", null, ["Run", "State", "Updates", "Algorithm", "World model", "Return", "Success before", "after", "In training"]
          .map((title) => h("th", null, title)))),
        this.body));
  }

  tabHref() {
    return "#/";
  }

  show(state) {
    this.words = (state.params.q || "").toLowerCase();
    this.draw();
  }

  keys() {
    return {
      j: () => this.move(1), ArrowDown: () => this.move(1), k: () => this.move(-1), ArrowUp: () => this.move(-1),
      g: () => this.move(-1e9), G: () => this.move(1e9),
      Enter: () => this.shown[this.index] && (location.hash = this.href(this.shown[this.index])),
    };
  }

  async news(changed) {
    if (!changed.runs) return;
    this.app.runs = (await ask("runs")).runs;
    this.draw();
  }

  href(run) {
    return format({ run: run.name, tab: "curves" });
  }

  move(by) {
    this.index = Math.max(0, Math.min(this.shown.length - 1, this.index < 0 ? 0 : this.index + by));
    this.draw();
    this.body.children[this.index]?.scrollIntoView({ block: "nearest" });
  }

  draw() {
    this.shown = this.app.runs.filter((run) => run.name.toLowerCase().includes(this.words || ""));
    replace(this.body, this.shown.map((run, i) => h("tr", { "aria-selected": String(i === this.index) },
      h("td", null, h("a", { href: this.href(run) }, run.name)),
      h("td", null, h("span", { cls: "dot", data: { state: run.state } }), run.state),
      h("td", { cls: "num" }, progress(run)),
      h("td", null, run.algorithm || "–"),
      h("td", null, world(run.wm)),
      h("td", { cls: "num" }, number(run.reward_mean)),
      h("td", { cls: "num", title: spread(run.before) }, rate(run.before)),
      h("td", { cls: "num strong", title: spread(run.after) }, rate(run.after)),
      h("td", null, sparkline(run.curve)))));
    if (!this.shown.length) replace(this.body, h("tr", null, h("td", { colspan: 9, cls: "muted" }, "No run has this in its name.")));
  }
}

function progress(run) {
  if (!run.planned) return number(run.updates);
  return [h("progress", { max: run.planned, value: run.updates }), ` ${run.updates} / ${run.planned}`];
}

export function world(wm) {
  if (!wm || wm.wm === "off") return "off";
  return [wm.loss, wm.loss === "cmae" && `ρ ${wm.rho}`, `α ${wm.alpha}`, wm.adaptive ? "adaptive λ" : "λ = 1"]
    .filter(Boolean).join(" · ");
}

function sparkline(values) {
  const points = (values || []).map((v, i) => [i, v]).filter(([, v]) => v !== null);
  if (points.length < 2) return "";
  const [w, tall] = [120, 24];
  const most = Math.max(...points.map(([, v]) => v), 1e-9);
  const x = (i) => (i / Math.max(1, values.length - 1)) * (w - 4) + 2;
  const y = (v) => tall - 3 - (v / most) * (tall - 6);
  return s("svg", { width: w, height: tall, class: "spark", role: "img", "aria-label": "success in training" },
    s("polyline", { points: points.map(([i, v]) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ") }));
}
