// All runs of a folder, a row each: sorted by a column, and chosen to be laid over one another.

import { ask } from "./api.js";
import { day, h, interval, number, plural, rate, replace, s } from "./dom.js";
import { MOST_RUNS } from "./overlay.js";
import { current, format, go, home, runsParam } from "./state.js";

// [key, title, value to sort by, cell]
const COLUMNS = [
  ["name", "Run", (run) => run.name, null],
  ["success", "Success", (run) => (run.after || run.before)?.success_rate, (run) => [
    run.before && h("small", { cls: "muted", title: `before RL: ${intervalText(run.before)}` }, `${rate(run.before)} → `), h("b", { title: intervalText(run.after) }, rate(run.after)),
    (run.after || run.before) && h("small", { cls: "muted reach" }, `${interval(run.after || run.before)} · n = ${number((run.after || run.before).n)}`)]],
  ["env", "Environment", (run) => run.env, (run) => short(run.env)],
  ["model", "Model", (run) => run.model, (run) => h("span", { title: run.model || "" }, run.model ? run.model.split("/").pop() : "–")],
  ["method", "Method", (run) => method(run), (run) => h("span", { title: run.kind === "training" ? `world model: ${world(run.world_model)}` : "" }, method(run) || "–")],
  ["seed", "Seed", (run) => run.seed, (run) => (run.seed === null ? "–" : String(run.seed))],
  ["updates", "Updates", (run) => run.updates, (run) => (run.kind === "training" ? progress(run) : "–")],
  ["date", "Date", (run) => run.date, (run) => day(run.date)],
  ["return", "Return", (run) => run.reward_mean, (run) => number(run.reward_mean)],
  ["curve", "In training", null, (run) => sparkline(run.curve)],
];
const NUMBERS = new Set(["date", "seed", "updates", "return", "success"]);
const intervalText = (result) => (result ? `95 % interval ${interval(result)}, ${plural(result.n, "task")}` : "");
const brief = (wm) => (!wm || wm.enabled === false ? null : wm.loss === "cmae" ? `cmae ρ ${wm.rho}` : String(wm.loss));
const short = (id) => (id ? id.replace(/paw_gym\//g, "") : "–");
const method = (run) => (run.kind === "evaluation" ? run.agent : [run.algorithm, brief(run.world_model)].filter(Boolean).join(" + "));

export class RunsPage {
  constructor(app) {
    this.app = app;
    this.name = null;
    this.index = -1;
    this.chosen = new Set();
    this.head = h("tr");
    this.body = h("tbody");
    this.bar = h("p", { cls: "choose-bar" });
    this.node = h("div", { cls: "page runs" }, h("h1", null, app.folder), this.bar,
      h("div", { cls: "scroll" }, h("table", null, h("thead", null, this.head), this.body)));
  }

  show(state) {
    this.words = (state.params.q || "").toLowerCase();
    this.sort = state.params.sort || "name";
    this.draw();
  }

  keys() {
    return {
      j: () => this.move(1), ArrowDown: () => this.move(1), k: () => this.move(-1), ArrowUp: () => this.move(-1),
      g: () => this.move(-1e9), G: () => this.move(1e9), " ": () => this.shown[this.index] && this.choose(this.shown[this.index].name),
      Enter: () => this.shown[this.index] && (location.hash = home(this.shown[this.index])),
    };
  }

  async news(changed) {
    if (!changed.runs) return;
    this.app.runs = (await ask("runs")).runs;
    this.draw();
  }

  move(by) {
    this.index = Math.max(0, Math.min(this.shown.length - 1, this.index < 0 ? 0 : this.index + by));
    this.draw();
    this.body.children[this.index]?.scrollIntoView({ block: "nearest" });
  }

  choose(name) {
    if (!this.chosen.delete(name)) this.chosen.add(name);
    this.draw();
  }

  // The runs that have the words in one of their texts, in the order of the chosen column.
  listed() {
    const found = this.app.runs.filter((run) => [run.name, run.env, run.model, method(run)].join(" ").toLowerCase().includes(this.words));
    const down = this.sort.startsWith("-");
    const [, , value] = COLUMNS.find(([key]) => key === this.sort.replace(/^-/, "")) || COLUMNS[0];
    const missing = (v) => v === null || v === undefined || v === false;
    return found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return down ? -order : order;
    });
  }

  draw() {
    this.shown = this.listed();
    const known = new Set(this.app.runs.map((run) => run.name));
    for (const name of this.chosen) if (!known.has(name)) this.chosen.delete(name);
    this.drawHead();
    this.drawBar();
    replace(this.body, this.shown.map((run, i) => h("tr", { "aria-selected": String(i === this.index) },
      h("td", { cls: "pick" }, h("input", { type: "checkbox", checked: this.chosen.has(run.name), "aria-label": `choose ${run.name}`, onchange: () => this.choose(run.name) })),
      COLUMNS.map(([key, , , cell]) => h("td", { cls: NUMBERS.has(key) ? "num" : "", data: { column: key } },
        cell ? cell(run) : this.nameCell(run))))));
    if (!this.shown.length) replace(this.body, h("tr", null, h("td", { colspan: COLUMNS.length + 1, cls: "muted" }, "No run has this in its name, environment, model or method.")));
  }

  nameCell(run) {
    return [h("span", { cls: "dot", title: run.state, data: { state: run.state } }), h("a", { href: home(run) }, run.name),
      run.state !== "finished" && h("small", { cls: "muted" }, ` ${run.state}`), alarms(run)];
  }

  drawHead() {
    const [key, down] = [this.sort.replace(/^-/, ""), this.sort.startsWith("-")];
    // numbers begin with the largest, names with the first
    const next = (column) => (column === key ? (down ? column : `-${column}`) : NUMBERS.has(column) ? `-${column}` : column);
    replace(this.head, h("th", { cls: "pick" }), COLUMNS.map(([column, title, value]) => h("th", {
      cls: NUMBERS.has(column) ? "num" : "", data: { column }, "aria-sort": column === key ? (down ? "descending" : "ascending") : null,
    }, value ? h("button", { title: `sort by ${title.toLowerCase()}`, onclick: () => go({ params: { sort: next(column) } }, { replace: true }) },
      title, column === key && h("span", { "aria-hidden": "true" }, down ? " ▾" : " ▴")) : title)));
  }

  drawBar() {
    const names = this.app.runs.map((run) => run.name).filter((name) => this.chosen.has(name));
    const few = names.slice(0, MOST_RUNS);
    replace(this.bar, names.length < 2 ? h("span", { cls: "muted" }, "Tick two runs or more to see them over one another.") : [
      h("a", { cls: "chip go", href: format({ run: null, params: { runs: runsParam(few), sm: current().params.sm } }) }, `${few.length} runs over one another`),
      names.length > few.length && h("span", { cls: "muted" }, `the first ${MOST_RUNS}`),
      h("button", { cls: "chip plain", onclick: () => { this.chosen.clear(); this.draw(); } }, "none")]);
  }
}

function alarms(run) {
  const now = run.alarms.filter((alarm) => alarm.ongoing);
  return now.length > 0 && h("span", { cls: "badge bad alarm", title: now.map((alarm) => `${alarm.title}: ${alarm.text}`).join("\n") }, plural(now.length, "alarm"));
}

function progress(run) {
  if (!run.planned || run.updates >= run.planned) return number(run.updates);
  return [h("progress", { max: run.planned, value: run.updates }), ` ${run.updates} / ${run.planned}`];
}

export function world(wm) {
  if (!wm || wm.enabled === false) return "off";
  return [wm.loss, wm.loss === "cmae" && `ρ ${wm.rho}`, `α ${wm.alpha}`, wm.adaptive ? "adaptive λ" : "λ = 1"]
    .filter(Boolean).join(" · ");
}

function sparkline(values) {
  const points = (values || []).map((v, i) => [i, v]).filter(([, v]) => v !== null);
  if (points.length < 2) return "";
  const [w, tall] = [100, 24];
  const most = Math.max(...points.map(([, v]) => v), 1e-9);
  const x = (i) => (i / Math.max(1, values.length - 1)) * (w - 4) + 2;
  const y = (v) => tall - 3 - (v / most) * (tall - 6);
  return s("svg", { width: w, height: tall, class: "spark", role: "img", "aria-label": "success in training" },
    s("polyline", { points: points.map(([i, v]) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ") }));
}
