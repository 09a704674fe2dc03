// What could have been known, beside what was predicted: a bar over each word that was not certain, and nats.

import { ask } from "./api.js";
import { h, number, plural, replace, signed } from "./dom.js";

const PAUSE = 250; // milliseconds before an episode is asked about: whoever leafs through asks nothing
const TELLS = {
  "carried out": "whether the action is carried out", closed: "whether it can be opened", empty: "whether anything lies there",
  object: "what lies there", number: "its number", more: "whether more follows", last: "whether one more follows",
  location: "the number of the place", facing: "what shares the place",
};

// Asks once an episode is looked at for a moment; the answer, or a sentence why there is none.
export async function askTruth(run, key, signal) {
  await new Promise((done) => setTimeout(done, PAUSE));
  if (signal.aborted) return null;
  return ask("truth", { run, key }, signal).catch((error) => (error.name === "AbortError" ? null : { why: error.message, turns: [] }));
}

export const turnOf = (truth, step) => truth?.turns.find((turn) => turn.step === step) ?? null;

// Marks the tokens that were not certain, and tells the tooltip what is true of all of them.
export function markTokens(nodes, turn) {
  if (!turn || turn.why) return;
  for (const node of nodes) Object.assign(node.dataset, { truth: "1", excess: -Number(node.dataset.logprob) });
  for (const word of turn.words) {
    for (const node of nodes.slice(word.first, word.end)) {
      node.classList.add("open");
      node.classList.toggle("sampled", word.estimated);
      node.style.setProperty("--t", String(word.p ?? 0));
      if (word.end - word.first > 1) node.dataset.whole = "1";
      Object.assign(node.dataset, { truth: word.p ?? "", excess: word.excess ?? "", tells: word.what.split(", ").map((what) => TELLS[what] || what).join(", ") });
    }
  }
  for (const node of nodes) node.classList.toggle("missed", Number(node.dataset.excess) > Math.LN2);
}

// The tooltip's part.
export function tipOf({ truth, excess, tells, whole }, sampled) {
  if (truth === undefined) return null;
  const name = whole ? "true p of the word" : "true p";
  return h("div", null, truth === "" ? h("b", null, `${name} too small to be estimated`) : [
    h("b", null, `${name} ${sampled ? "≈" : "="} ${number(Number(truth), 4)}`),
    h("span", null, `excess ${signed(Number(excess))} nats`)],
    h("span", { cls: "muted" }, tells ? `tells ${tells}` : "certain, given what was seen"));
}

// A turn's sums, below its observation.
export function sums(turn) {
  if (!turn) return null;
  if (turn.why) return h("p", { cls: "sums muted" }, `True probabilities: ${turn.why}`);
  return h("p", { cls: "sums" }, bar(turn), nats(turn),
    turn.missed.length > 0 && h("span", { title: "words with the largest excess, in nats: the truth was more than twice as likely as predicted" }, "missed ",
      turn.missed.map(([text, excess], i) => [i > 0 && ", ", h("code", null, text || "(space)"), ` ${signed(excess, 2)}`])));
}

function nats({ floor, excess, model, estimated, left_out }) {
  return [
    h("span", { title: `nats that nobody could know${estimated > 0 ? `; ${number(estimated)} of them estimated by sampling` : ""}` }, `floor ${estimated > 0 ? "≈ " : ""}${number(floor)}`),
    h("span", { title: excess < 0 ? "below 0: what happened was less surprising to the model than the truth allows on average; chance, or an estimate's error" : "nats that could have been known" }, `excess ${signed(excess)}`),
    h("span", { title: "−log p of the observation's tokens, nats" }, `model ${number(model)} nats`),
    left_out > 0 && h("span", { cls: "muted" }, `without ${plural(left_out, "token")} whose true p is too small to be estimated`)];
}

function bar({ floor, model }) {
  const known = Math.min(1, floor / Math.max(model, floor, 1e-9));
  return model + floor > 0 && h("span", { cls: "floor-bar", "aria-hidden": "true" }, h("i", { style: { width: `${100 * known}%` } }));
}

// The episode's part of the legend.
export function truthLegend(node, truth) {
  if (!truth) return replace(node, "true probabilities …");
  if (truth.why) return replace(node, h("span", null, `True probabilities are not shown: ${truth.why}`));
  return replace(node,
    h("span", null, h("span", { cls: "tok open", style: { "--p": "0.5", "--t": "0" } }, "bar"), " could not be known: the stronger, the smaller the true p"),
    truth.estimated > 0 && h("span", null, h("span", { cls: "tok open sampled", style: { "--p": "0.5", "--t": "0" } }, "dashed"), " true p estimated by sampling"),
    h("span", null, h("span", { cls: "tok missed", style: { "--p": "0.5" } }, "bold"), " could have been known: true p > 2 p"),
    h("span", { cls: "sums", title: "given every action and observation before, also those that a prompt no longer shows, without lists of admissible actions" }, "episode: ", nats(truth)));
}
