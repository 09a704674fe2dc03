// The frame: top bar, address, keyboard, and following the run while it trains.

import { ask } from "./api.js";
import { h, replace } from "./dom.js";
import { Keys } from "./keys.js";
import { OverlayPage } from "./overlay.js";
import { RunPage } from "./run.js";
import { RunsPage } from "./runs.js";
import { chosenRuns, current, go, home } from "./state.js";

const PULSE = 1500; // milliseconds between two questions whether anything is new

class App {
  constructor(root) {
    this.keys = new Keys();
    this.page = null;
    this.seen = {};
    this.title = h("a", { cls: "brand", href: "#/", title: "All runs (0)" },
      h("img", { src: "/static/icon.svg", alt: "", width: 20, height: 20 }), "paw view");
    this.where = h("nav", { cls: "where", "aria-label": "Run and view" });
    this.search = h("input", { type: "search", id: "search", placeholder: "Search   /", autocomplete: "off",
      spellcheck: "false", "aria-label": "Search" });
    this.search.addEventListener("input", () => this.searching());
    this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.search.blur());
    this.status = h("span", { cls: "status", role: "status" });
    this.main = h("main");
    replace(root,
      h("header", { cls: "top" }, this.title, this.where, h("span", { cls: "grow" }), this.status, this.search,
        h("button", { cls: "icon", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: () => window.pawTheme.toggle() }, "◐"),
        h("button", { cls: "icon", title: "Keyboard (?)", "aria-label": "Keyboard help", onclick: () => this.keys.toggleHelp() }, "?")),
      this.main);
    window.addEventListener("hashchange", () => this.show());
    document.addEventListener("visibilitychange", () => !document.hidden && this.beat());
  }

  async start() {
    const { runs, folder, first } = await ask("runs");
    this.runs = runs;
    this.folder = folder;
    if (first !== null && location.hash.length < 3) history.replaceState(null, "", home(runs.find((run) => run.name === first)));
    this.show();
    this.beat();
  }

  show() {
    const state = current();
    const name = state.run;
    const over = name === null && chosenRuns(state.params);
    const kind = over ? OverlayPage : name === null ? RunsPage : RunPage;
    if (!(this.page instanceof kind) || this.page.name !== name) {
      this.seen = {};
      this.page = new kind(this, name);
      replace(this.main, this.page.node);
    }
    document.title = over ? `${over.length} runs · paw view` : name ? `${name} · paw view` : `${this.folder} · paw view`;
    if (document.activeElement !== this.search) this.search.value = state.params.q || "";
    this.search.placeholder = over ? "Find a measurement   /" : name === null ? "Find a run   /" : "Search episodes   /";
    const shown = name === null ? null : this.page.tabOf(state);
    replace(this.where, name === null ? h("span", { cls: "crumb" }, this.folder) : [
      this.runs.length > 1 ? this.picker(name) : h("span", { cls: "crumb" }, name),
      h("span", { cls: "tabs", role: "tablist" }, this.page.tabs.map((tab, i) => h("a", {
        role: "tab", "aria-selected": String(tab === shown), href: this.page.tabHref(tab), title: `${tab} (${i + 1})`,
      }, tab[0].toUpperCase() + tab.slice(1)))),
    ]);
    this.keys.actions = { ...this.always(), ...this.page.keys() };
    this.page.show(state);
  }

  picker(name) {
    const select = h("select", { cls: "picker", "aria-label": "Run" },
      this.runs.map((run) => h("option", { value: run.name, selected: run.name === name }, run.name)));
    select.addEventListener("change", () => {
      select.blur();
      go({ run: select.value, params: { ep: null, turn: null, u: null } });
    });
    return select;
  }

  always() {
    const tab = (i) => () => this.page.name !== null && (location.hash = this.page.tabHref(this.page.tabs[i]));
    return {
      "/": () => { this.search.focus(); this.search.select(); },
      t: () => window.pawTheme.toggle(),
      0: () => { location.hash = "#/"; },
      1: tab(0), 2: tab(1), 3: tab(2), 4: tab(3),
      Escape: () => {
        if (document.activeElement && document.activeElement !== document.body) document.activeElement.blur();
      },
    };
  }

  searching() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      const state = current();
      const list = state.run && this.page.tabOf(state) === this.page.tabs[0] ? { tab: "episodes" } : {};
      go({ ...list, params: { q: this.search.value || null, ep: null, turn: null } }, { replace: !list.tab });
    }, 120);
  }

  // Asks whether anything is new, and lets the page ask for what is.
  async beat() {
    clearTimeout(this.timer);
    const page = this.page;
    try {
      const pulse = await ask("pulse", { run: page.name });
      if (page === this.page) {
        const changed = Object.fromEntries(Object.entries(pulse).map(([k, v]) => [k, JSON.stringify(v) !== JSON.stringify(this.seen[k])]));
        const first = Object.keys(this.seen).length === 0;
        this.seen = pulse;
        this.report(pulse);
        if (!first) await page.news(changed, pulse);
        else await page.begun?.(pulse);
      }
    } catch (error) {
      if (error instanceof TypeError) this.report({ state: "gone" });
      else console.warn(error);
    }
    if (!document.hidden) this.timer = setTimeout(() => this.beat(), PULSE);
  }

  report(pulse) {
    const words = { training: "following", gone: "server is gone", finished: "finished", stopped: "stopped" };
    const reading = pulse.indexing && "reading episodes";
    this.status.dataset.state = reading ? "reading" : pulse.state || "";
    replace(this.status, reading || words[pulse.state] || "");
  }
}

const root = document.getElementById("app");
const app = new App(root);
window.paw = app; // for a look from the console
app.start().catch((error) => replace(root, h("p", { cls: "loading" }, `This run cannot be shown: ${error.message}`)));
