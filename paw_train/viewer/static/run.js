// One run: its tabs, what they share, and what the news of it change.

import { ask } from "./api.js";
import { CurvesPage } from "./curves.js";
import { h, replace } from "./dom.js";
import { ListPage } from "./list.js";
import { ResultPage } from "./result.js";
import { FILTERS, TABS, current, format } from "./state.js";

export class RunPage {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.node = h("div", { cls: "page run" }, h("p", { cls: "loading" }, "Opening …"));
    this.info = null;
    this.kind = app.runs.find((run) => run.name === name)?.kind || "training";
    this.tabs = TABS[this.kind];
    this.first = this.kind === "evaluation" ? new ResultPage(this) : new CurvesPage(this);
    this.list = new ListPage(this);
  }

  // The same filters and range on every tab; the episode stays chosen.
  tabHref(tab) {
    const { params } = current();
    const kept = Object.fromEntries([...FILTERS, "ep", "wm", "resp"].map((key) => [key, params[key]]));
    return format({ run: this.name, tab, params: kept });
  }

  // What an address without a tab, or with another kind's, means.
  tabOf(state) {
    return this.tabs.includes(state.tab) ? state.tab : this.tabs[0];
  }

  show(state) {
    const part = this.tabOf(state) === this.tabs[0] ? this.first : this.list;
    if (this.part !== part) {
      this.part = part;
      replace(this.node, part.node);
    }
    part.show(state);
    if (!this.info) this.describe();
  }

  keys() {
    return this.tabOf(current()) === this.tabs[0] ? this.first.keys() : this.list.keys();
  }

  async describe() {
    try {
      this.info = await ask("run", { run: this.name });
    } catch (error) {
      replace(this.node, h("p", { cls: "loading" }, error.message, " ", h("a", { href: "#/" }, "All runs")));
      return;
    }
    this.answered(this.info);
    this.first.described(this.info);
    this.list.described(this.info);
  }

  // Notes that an answer came while episodes were still being read: it has to be asked for again.
  answered({ indexing }) {
    if (indexing) this.behind = true;
  }

  async begun(pulse) {
    if (this.behind) await this.news({}, pulse);
  }

  async news(changed, pulse) {
    if (changed.episodes || changed.state || (this.behind && !pulse.indexing)) {
      this.behind = Boolean(pulse.indexing);
      await this.describe();
      this.list.refresh();
    }
    if (changed.curves) this.first.refresh();
  }
}
