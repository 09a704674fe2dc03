// The page of an evaluation: what was measured of which agent and model, and by what settings.

import { alarmBox } from "./curves.js";
import { day, h, interval, number, percent, plural, rate, replace } from "./dom.js";
import { format } from "./state.js";

const LABELS = {
  mean_steps: "turns an episode", mean_reward: "mean return", invalid_rate: "invalid actions", truncated_rate: "truncated answers",
  errors: "failed episodes", seconds: "wall time", model_calls: "model calls", privileged: "privileged information", told: "privileged information", fingerprint: "tasks (fingerprint)",
  tasks: "tasks of the panel", unplayed: "episodes not run", complete: "complete", panel_hash: "panel (hash)", prompt_hash: "prompts (hash)", model_hash: "weights (hash)",
};
const DETAILS = { agent_settings: "Agent", sampling: "Sampling", endpoint: "Endpoint", environment: "Environment", settings: "Settings",
  invalid_causes: "Why actions were invalid", forgotten: "Left out of contexts that were too long" };
const SHOWN = new Set(["invalid_rate", "truncated_rate", "mean_steps", "seconds", "model_calls", "first_error"]);
const CARDS = ["invalid_rate", "truncated_rate", "mean_steps", "seconds"];

export class ResultPage {
  constructor(page) {
    this.page = page;
    this.node = h("div", { cls: "curves result" });
  }

  keys() {
    return {};
  }

  show() {
    if (this.info) this.draw();
  }

  refresh() {}

  described(info) {
    this.info = info;
    this.draw();
  }

  draw() {
    const { info } = this;
    const e = info.evaluation;
    replace(this.node, this.head(e), this.problem(e), alarmBox(info.alarms), this.cards(e), this.links(),
      info.notes.slice(0, 8).map((note) => h("p", { cls: "note" }, note)),
      this.types(e), this.seeds(e), this.measured(e), this.details(e));
  }

  head(e) {
    return h("header", { cls: "result-head" },
      h("h1", null, e.model || e.agent || this.page.name),
      h("dl", { cls: "facts" }, [["agent", e.agent], e.model && ["run", this.page.name], ["environment", e.env], ["panel", e.panel], ["date", day(this.info.date)]]
        .filter(Boolean).map(([name, value]) => value && h("div", null, h("dt", null, name), h("dd", null, value)))));
  }

  problem(e) {
    const { errors, unplayed, tasks, first_error: first } = e.measured;
    const parts = [
      !e.overall && "There is no success rate: no task was run to its end, or result.json is damaged.",
      e.overall && tasks > e.overall.n && `The rates are of ${e.overall.n} of ${plural(tasks, "task")}.`,
      errors > 0 && `${plural(errors, "episode")} failed with an error.`, unplayed > 0 && `${plural(unplayed, "episode")} not run.`,
    ].filter(Boolean);
    return parts.length > 0 && h("section", { cls: "alarms", role: "alert" }, h("p", null, parts.join(" "), " ",
      errors > 0 && this.info.outcomes.error > 0 && h("a", { href: this.href({ outcome: "error" }) }, "Read them")), first && h("pre", null, String(first).slice(0, 2000)));
  }

  cards(e) {
    const card = (title, value, small) => h("div", { cls: "card" }, h("span", null, title), h("b", null, value), h("small", null, small || ""));
    const { tokens, measured } = e;
    const calls = measured.model_calls > 0 ? plural(measured.model_calls, "model call") : "";
    return h("div", { cls: "cards" },
      card("Success", rate(e.overall), e.overall && `${interval(e.overall)} · ${plural(e.overall.n, "task")}`),
      e.score && card("Score", number(e.score.mean), e.score.ci95 && `${number(e.score.ci95[0])} – ${number(e.score.ci95[1])}`),
      e.cost !== null && card("Cost", e.cost, calls),
      tokens && card("Tokens", compact(tokens.prompt + tokens.completion), `${compact(tokens.prompt)} in · ${compact(tokens.completion)} out${e.cost === null && calls ? ` · ${calls}` : ""}`),
      CARDS.filter((name) => measured[name] !== undefined).map((name) => card(capital(LABELS[name]), shown(name, measured[name]))));
  }

  href(params) {
    return format({ run: this.page.name, tab: "episodes", params });
  }

  links() {
    const { outcomes, episodes } = this.info;
    return h("p", { cls: "kept" }, h("span", { cls: "muted" }, episodes ? "Episodes, with the conversation as it was sent:" : this.info.indexing ? "Reading the episodes …" : "No episodes were kept."),
      Object.entries(outcomes).map(([name, n]) => h("a", { cls: "chip", href: this.href({ outcome: name }) },
        h("i", { cls: `o ${name}` }), name, h("small", null, ` ${n}`))));
  }

  types(e) {
    if (!e.overall || e.types.length + e.averages.length === 0) return null;
    const row = (part, cls, link) => h("tr", { cls }, h("th", null, link ? h("a", { href: this.href({ type: part.name }) }, part.name.replaceAll("_", " ")) : part.name),
      h("td", { cls: "num" }, String(part.n)), h("td", { cls: "num" }, h("b", null, rate(part))), h("td", { cls: "bar-cell" }, bar(part)), h("td", { cls: "num muted" }, interval(part)));
    return h("section", null, h("h2", null, "By task type"), h("div", { cls: "scroll" }, h("table", { cls: "plain types" },
      h("thead", null, h("tr", null, ["task type", "tasks", "success", "", "95 % interval"].map((title, i) => h("th", { cls: ["", "num", "num", "bar-cell", ""][i] }, title)))),
      h("tbody", null, row({ name: "all", ...e.overall }, "total"), e.types.map((part) => row(part, "", true)),
        e.averages.map((part) => row({ ...part, name: `mean of ${part.name}` }, "average"))))));
  }

  seeds(e) {
    const passes = Object.entries(e.pass_at_k);
    if (e.runs.length < 2 && !passes.length) return null;
    return h("section", null, h("h2", null, "Seeds"), h("p", { cls: "facts-line" },
      e.runs.map((run) => h("span", null, `seed ${run.seed}: `, h("b", null, percent(run.success_rate)))),
      passes.map(([k, mean]) => h("span", null, `pass@${k}: `, h("b", null, percent(mean))))));
  }

  measured(e) {
    const rows = Object.entries(e.measured).filter(([name, value]) => !SHOWN.has(name) && !(value === 0 && (name === "errors" || name === "unplayed")));
    return rows.length > 0 && h("section", null, h("h2", null, "Further"), facts(rows.map(([name, value]) => [LABELS[name] || words(name), shown(name, value)])));
  }

  details(e) {
    return h("section", null, h("h2", null, "Settings and details"), Object.entries(e.details).map(([name, value]) =>
      h("details", { cls: "settings", open: name === "agent_settings" || name === "endpoint" }, h("summary", null, DETAILS[name] || words(name)), facts(flat(value)))));
  }
}

const facts = (rows) => h("dl", { cls: "pairs" }, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, String(value))]));
const words = (name) => name.replaceAll("_", " ");
const capital = (text) => text[0].toUpperCase() + text.slice(1);

function flat(value, prefix = "") {
  return Object.entries(value).flatMap(([key, item]) => item !== null && typeof item === "object" && !Array.isArray(item)
    ? flat(item, `${prefix}${key}.`) : [[prefix + key, item === null ? "–" : typeof item === "string" ? item : JSON.stringify(item)]]);
}

function shown(name, value) {
  if (/_(rate|share)$/.test(name)) return percent(value);
  if (name === "seconds") return value < 100 ? `${number(value)} s` : value < 6000 ? `${Math.round(value / 60)} min` : `${number(value / 3600, 2)} h`;
  return typeof value === "number" ? number(value) : String(value);
}

const compact = (n) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n || 0);

// A bar from 0 to 100 % with its interval.
function bar(part) {
  const [low, high] = part.ci95;
  return h("div", { cls: "rate-bar", role: "img", "aria-label": `${rate(part)}, 95 % interval ${interval(part)}` },
    h("i", { cls: "rate", style: { width: `${100 * part.success_rate}%` } }),
    h("i", { cls: "whisker", style: { left: `${100 * low}%`, width: `${100 * (high - low)}%` } }));
}
