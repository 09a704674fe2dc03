// One run: its tabs, what they share, and what the news of it change.

import { ask } from "./api.js";
import { CurvesPage } from "./curves.js";
import { h, replace } from "./dom.js";
import { ListPage } from "./list.js";
import { FILTERS, current, format } from "./state.js";

export class RunPage {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.node = h("div", { cls: "page run" }, h("p", { cls: "loading" }, "Opening …"));
    this.info = null;
    this.curves = new CurvesPage(this);
    this.list = new ListPage(this);
  }

  // The same filters and range on every tab; the episode stays chosen.
  tabHref(tab) {
    const { params } = current();
    const kept = Object.fromEntries([...FILTERS, "ep", "wm", "resp"].map((key) => [key, params[key]]));
    return format({ run: this.name, tab, params: kept });
  }

  show(state) {
    const part = state.tab === "curves" ? this.curves : this.list;
    if (this.part !== part) {
      this.part = part;
      replace(this.node, part.node);
    }
    part.show(state);
    if (!this.info) this.describe();
  }

  keys() {
    return current().tab === "curves" ? this.curves.keys() : this.list.keys();
  }

  async describe() {
    try {
      this.info = await ask("run", { run: this.name });
    } catch (error) {
      replace(this.node, h("p", { cls: "loading" }, error.message, " ", h("a", { href: "#/" }, "All runs")));
      return;
    }
    this.curves.described(this.info);
    this.list.described(this.info);
  }

  first(pulse) {
    if (pulse.indexing) this.behind = true;
  }

  async news(changed, pulse) {
    if (changed.episodes || changed.state || (this.behind && !pulse.indexing)) {
      this.behind = Boolean(pulse.indexing);
      await this.describe();
      this.list.refresh();
    }
    if (changed.curves) this.curves.refresh();
  }
}
