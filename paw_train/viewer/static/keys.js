// The keyboard: one table of keys, shown by "?".

import { h } from "./dom.js";

const HELP = [
  ["Lists", [["j  ↓", "next"], ["k  ↑", "previous"], ["g  G", "first, last"], ["PgDn  PgUp", "ten further, ten back"],
    ["Enter", "open: a run, a group's episode, a turn's episode"], ["Space", "choose a run to lay over others"]]],
  ["Episode", [["n  p", "next, previous turn"], ["l  →", "next episode of the group"], ["h  ←", "previous episode of the group"],
    ["s", "the group side by side"], ["w", "world model: token probabilities"], ["r", "probabilities of responses as well"],
    ["m", "open or close what was sent to the model"], ["o", "open or close all prompts"], ["a", "open or close all admissible actions"]]],
  ["Everywhere", [["/", "search"], ["1 – 4", "curves or result, groups, episodes, turns"], ["0", "all runs"], ["x", "clear all filters"],
    ["t", "light or dark"], ["Esc", "close, or leave the search"], ["?", "this help"]]],
];

export class Keys {
  constructor() {
    this.actions = {};
    this.help = h("dialog", { cls: "help" },
      h("h2", null, "Keyboard"),
      h("div", { cls: "help-columns" }, HELP.map(([title, rows]) =>
        h("section", null, h("h3", null, title),
          h("dl", null, rows.map(([key, what]) => [
            h("dt", null, key.split("  ").map((part) => h("kbd", null, part))), h("dd", null, what)]))))),
      h("p", { cls: "muted" }, "The address holds what you see: copy it to come back, or to show somebody."));
    this.help.addEventListener("click", (event) => event.target === this.help && this.help.close());
    document.body.append(this.help);
    document.addEventListener("keydown", (event) => this.press(event));
  }

  toggleHelp() {
    if (this.help.open) this.help.close();
    else this.help.showModal();
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (this.help.open) {
      if (event.key === "?" || event.key === "Escape") {
        this.help.close();
        event.preventDefault();
      }
      return;
    }
    if (typing && event.key !== "Escape") return;
    if (event.key === "Enter" && /^(BUTTON|A|SUMMARY)$/.test(event.target.tagName)) return;
    const action = event.key === "?" ? () => this.toggleHelp() : this.actions[event.key];
    if (action) {
      event.preventDefault();
      action(event);
    }
  }
}
