// Next-observation tokens coloured by their probability. The colour is the number in the file:
// `--p` is exp(logprob), and the style sheet turns 1 - p into the strength of one hue.

import { h, number, visible } from "./dom.js";

export function tokenText(part, { clips, rho }) {
  const { tokens, logprobs, clipped } = part;
  const nodes = tokens.map((text, i) => {
    const p = Math.exp(logprobs[i]);
    const left = clips && clipped && clipped[i] === "1";
    const node = h("span", {
      cls: `tok${left ? " clip" : clips ? " learn" : ""}`,
      style: { "--p": String(p) },
      data: { logprob: String(logprobs[i]) },
    }, text === "" ? "" : text);
    if (text === "") node.classList.add("part");
    if (clips && rho !== null) node.dataset.clip = left ? "1" : "0";
    return node;
  });
  return h("span", { cls: "tokens" }, nodes);
}

// One tooltip for all tokens.
export class TokenTip {
  constructor(root) {
    this.node = h("div", { cls: "tip", role: "tooltip", hidden: true });
    document.body.append(this.node);
    root.addEventListener("pointerover", (event) => this.over(event.target.closest?.(".tok[data-logprob]")));
    root.addEventListener("pointerleave", () => { this.node.hidden = true; });
  }

  over(token) {
    this.node.hidden = !token;
    if (!token) return;
    const logprob = Number(token.dataset.logprob);
    const clip = token.dataset.clip;
    this.node.replaceChildren(
      h("div", null,
        h("code", null, visible(JSON.stringify(token.textContent))),
        h("b", null, `p = ${number(Math.exp(logprob), 4)}`),
        h("span", null, `−log p = ${number(-logprob, 4)} nats`),
        clip !== undefined && h("span", { cls: "muted" }, clip === "1" ? "clipped: p > ρ, no pull" : "p ≤ ρ: learned from")));
    this.node.style.left = "0"; // where it was would narrow it
    const box = token.getBoundingClientRect();
    const wide = this.node.offsetWidth;
    this.node.style.left = `${Math.max(8, Math.min(innerWidth - wide - 8, box.left))}px`;
    const below = box.bottom + 6;
    const tall = this.node.offsetHeight;
    this.node.style.top = `${below + tall > innerHeight ? box.top - tall - 6 : below}px`;
  }
}

export function legend(episode) {
  const clips = clipsOf(episode);
  const wm = episode.world_model;
  return h("div", { cls: "legend" },
    h("span", null, "next-observation tokens by probability"),
    h("span", { cls: "scale" }, [0, 0.25, 0.5, 0.75, 1].map((p) => h("span", { cls: "tok", style: { "--p": String(p) } }, String(p)))),
    clips && h("span", null, h("span", { cls: "tok clip", style: { "--p": "1" } }, "clipped"), ` p > ρ = ${number(episode.rho)}, no pull`),
    clips && h("span", null, h("span", { cls: "tok learn", style: { "--p": "1" } }, "learned"), " p ≤ ρ"),
    wm && h("span", null, h("span", { cls: "sel" }, "◆"), " selected by action entropy"),
    !wm && h("span", null, "this run's world model is off: measured, not learned from"));
}

export const clipsOf = (episode) => episode.world_model && episode.loss === "cmae" && episode.rho !== null;
