// The episodes of one task side by side, turn by turn.

import { ask } from "./api.js";
import { h, number, plural, replace, signed, tone } from "./dom.js";
import { OUTCOMES, advantage, surprise } from "./episode.js";
import { origin } from "./list.js";
import { current, format, go } from "./state.js";

export class GroupView {
  constructor(page, node) {
    this.page = page;
    this.node = node;
  }

  async show(params) {
    const key = params.ep;
    if (this.node.dataset.key === `group ${key}`) return;
    const inside = this.episodes?.some((e) => e.key === key);
    if (!inside) {
      this.asking?.abort();
      this.asking = new AbortController();
      try {
        this.episodes = (await ask("group", { run: this.page.name, key }, this.asking.signal)).episodes;
      } catch (error) {
        if (error.name === "AbortError") return;
        this.episodes = null;
        this.node.dataset.key = "";
        replace(this.node, h("p", { cls: "loading" }, error.message));
        return;
      }
    }
    if (current().tab !== "groups" || current().params.ep !== key) return;
    const list = this.page.list;
    list.groupFirst = list.groupFirst || new Map();
    for (const e of this.episodes) list.groupFirst.set(e.key, this.episodes[0].key);
    this.draw(key);
    this.node.dataset.key = `group ${key}`;
    if (!inside) this.node.scrollTop = 0;
  }

  draw(chosen) {
    const all = this.episodes;
    const first = all[0];
    const mean = all.reduce((sum, e) => sum + e.return, 0) / all.length;
    const most = Math.max(...all.map((e) => e.turns.length));
    const training = first.phase === "training";
    const table = h("table", { cls: "side" },
      h("thead", null, h("tr", null, h("th", { cls: "no" }), all.map((e, i) => this.head(e, i, e.key === chosen, training)))),
      h("tbody", null, Array.from({ length: most }, (_, step) => this.line(step, all))));
    replace(this.node,
      h("header", { cls: "episode-head" },
        h("h1", null, first.instruction || first.task_id),
        h("p", { cls: "meta" }, h("span", null, training ? `rollout group of ${origin(first).replace("u", "update ")}` : this.page.kind === "evaluation" ? "the same task with each seed" : "the same task, before and after"),
          h("span", null, `mean return ${number(mean)}`),
          first.lambda !== null && h("span", { title: "λ = 1 − mean return / R max (Eq. 10): how much the world model learns from this group" }, `λ ${number(first.lambda)}`),
          h("span", null, `${all.filter((e) => e.outcome === "solved").length} of ${plural(all.length, "episode")} solved`),
          h("code", { title: first.task_id }, first.task_id))),
      h("div", { cls: "side-box" }, table));
  }

  head(e, i, chosen, training) {
    const a = e.turns.length ? advantage(e.turns[0]) : null;
    const href = format({ run: this.page.name, tab: "episodes", params: { ...current().params, ep: e.key } });
    return h("th", { "aria-current": chosen ? "true" : null },
      h("a", { href, title: "read this episode (Enter)" }, training || this.page.kind === "evaluation" ? `Episode ${i + 1}` : origin(e)),
      h("span", { cls: `badge ${e.outcome}` }, OUTCOMES[e.outcome] || e.outcome),
      h("div", { cls: "muted" }, `return ${number(e.return)} · ${plural(e.turns.length, "turn")}`, a !== null && h("span", { cls: tone(a) }, ` · A ${signed(a, 2)}`)));
  }

  line(step, all) {
    const turns = all.map((e) => e.turns[step]);
    const there = turns.filter(Boolean);
    const same = there.length === all.length && there.every((t) => t.action === there[0].action);
    return h("tr", { cls: same ? "same" : "" }, h("th", { cls: "no" }, String(step + 1)), turns.map((turn, i) => {
      if (!turn) return h("td", { cls: "over" });
      const nll = surprise(turn);
      return h("td", { data: { step }, onclick: () => go({ tab: "episodes", params: { ep: all[i].key, turn: turn.step } }) },
        h("div", { cls: "act-line" }, h("code", { cls: turn.valid ? "" : "invalid", title: turn.problem || "" }, turn.action || "(no action)"),
          turn.tokens?.selected && h("span", { cls: "sel", title: "selected by the world model" }, "◆"),
          turn.reward !== 0 && h("span", { cls: tone(turn.reward) }, signed(turn.reward))),
        h("div", { cls: "seen" }, turn.observation),
        turn.tokens && h("div", { cls: "muted small" }, `H ${number(turn.tokens.entropy, 2)}`, nll !== null && ` · surprise ${number(nll, 2)}`));
    }));
  }
}
