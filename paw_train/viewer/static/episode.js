// An episode as a conversation: what changed in the prompt, the answer, what came of it.

import { ask } from "./api.js";
import { h, number, plural, replace, signed, tone } from "./dom.js";
import { origin } from "./list.js";
import { current, go } from "./state.js";
import { TokenTip, clipsOf, legend, tokenText } from "./tokens.js";

const LONG = 8000; // characters of one text that are shown before "show all"
export const OUTCOMES = { solved: "solved", failed: "not solved", unfinished: "unfinished", error: "environment failed" };
const ACTIONS = new Set(["action", "search", "answer", "tool_call"]);

export class EpisodeView {
  constructor(page, node) {
    this.page = page;
    this.node = node;
    this.tip = new TokenTip(node);
  }

  async show(params) {
    const key = params.ep;
    const look = JSON.stringify([params.wm, params.resp]);
    if (this.data?.key !== key || this.node.dataset.key !== key) {
      this.asking?.abort();
      const control = new AbortController();
      this.asking = control;
      if (this.data?.key !== key) {
        try {
          this.data = await ask("episode", { run: this.page.name, key }, control.signal);
        } catch (error) {
          if (error.name === "AbortError") return;
          this.data = null;
          this.node.dataset.key = "";
          replace(this.node, h("p", { cls: "loading" }, error.message));
          return;
        }
      }
      if (current().tab === "groups" || current().params.ep !== key) return;
      this.draw();
      this.node.scrollTop = 0;
    } else if (this.look !== look) this.draw();
    this.look = look;
    this.mark(params.turn);
  }

  // A resumed run repeats updates: what is shown then changes.
  async again() {
    const { ep } = current().params;
    if (!this.data || this.data.key !== ep || this.node.dataset.key !== ep) return;
    const now = await ask("episode", { run: this.page.name, key: ep }).catch(() => null);
    if (!now || this.data.key !== ep || JSON.stringify(now) === JSON.stringify(this.data)) return;
    this.data = now;
    if (this.node.dataset.key === ep) this.draw();
  }

  draw() {
    const e = this.data;
    const { params } = current();
    const recorded = e.turns.some((turn) => turn.tokens);
    const view = { tokens: recorded && params.wm !== "0", responses: recorded && params.resp === "1", clips: clipsOf(e), rho: e.rho };
    const most = Math.max(1e-9, ...e.turns.map((t) => Math.abs(advantage(t) ?? 0)));
    this.node.dataset.key = e.key;
    replace(this.node,
      h("header", { cls: "episode-head" },
        h("h1", null, e.instruction || e.task_id),
        h("p", { cls: "meta" },
          h("span", { cls: `badge ${e.outcome}` }, OUTCOMES[e.outcome] || e.outcome),
          h("span", null, `return ${number(e.return)}`), h("span", null, plural(e.turns.length, "turn")),
          h("span", null, origin(e)),
          e.lambda !== null && h("span", { title: "λ of the group: 1 − mean return / R max (Eq. 10)" }, `λ ${number(e.lambda)}`),
          h("code", { title: e.task_id }, e.task_id)),
        h("p", { cls: "tools" },
          e.group.length > 1 && h("span", { cls: "siblings", role: "group", "aria-label": "Episodes of the group" }, e.group.map((key, i) =>
            h("button", { cls: "chip", "aria-pressed": String(key === e.key), title: "episode of the group (h, l)", onclick: () => go({ params: { ep: key, turn: null } }, { replace: true }) }, String(i + 1)))),
          e.group.length > 1 && h("button", { cls: "chip", title: "s", onclick: () => go({ tab: "groups" }) }, "side by side"),
          recorded && h("button", { cls: "chip", "aria-pressed": String(view.tokens), title: "w", onclick: () => go({ params: { wm: view.tokens ? "0" : null } }, { replace: true }) }, "world model"),
          recorded && h("button", { cls: "chip", "aria-pressed": String(view.responses), title: "r", onclick: () => go({ params: { resp: view.responses ? null : "1" } }, { replace: true }) }, "response tokens"),
          e.turns.some((turn) => turn.calls.length) && h("button", { cls: "chip", title: "m", onclick: () => this.toggle("details.sent") }, "as sent"),
          h("button", { cls: "chip", title: "o", onclick: () => this.toggle("details.prompt") }, "prompts"),
          h("button", { cls: "chip", title: "a", onclick: () => this.toggle("details.admissible") }, "admissible actions")),
        notes(e.notes),
        view.tokens && legend(e)),
      withRequests(e.turns).map(([turn, requests], i) => drawTurn(turn, requests, i, view, most, e)),
      !e.turns.length && h("p", { cls: "muted" }, "No turn was taken."),
      e.error && h("pre", { cls: "error-text" }, e.error));
  }

  mark(turn) {
    for (const node of this.node.querySelectorAll(".turn-card[aria-current]")) node.removeAttribute("aria-current");
    if (turn === undefined || turn === null) return;
    const node = this.node.querySelector(`.turn-card[data-step="${Number(turn)}"]`);
    if (!node) return;
    node.setAttribute("aria-current", "true");
    node.scrollIntoView({ block: "center" });
  }

  step(by) {
    const cards = [...this.node.querySelectorAll(".turn-card")];
    if (!cards.length) return;
    const at = cards.findIndex((card) => card.hasAttribute("aria-current"));
    const next = cards[Math.max(0, Math.min(cards.length - 1, at < 0 ? 0 : at + by))];
    go({ params: { turn: next.dataset.step } }, { replace: true });
  }

  sibling(by) {
    const group = this.data?.group || [];
    const at = group.indexOf(current().params.ep);
    const next = group[at + by];
    if (next) go({ params: { ep: next, turn: null } }, { replace: true });
  }

  toggle(selector) {
    const all = [...this.node.querySelectorAll(selector)];
    const open = all.some((node) => !node.open);
    for (const node of all) node.open = open;
  }
}

export function advantage(turn) {
  const value = turn.tokens?.advantage;
  if (!Array.isArray(value)) return value ?? null;
  return value.length ? value.reduce((a, b) => a + b, 0) / value.length : null;
}

export function surprise(turn) {
  const values = turn.tokens?.observation?.logprobs;
  return values?.length ? -values.reduce((a, b) => a + b, 0) / values.length : null;
}

// What the agent noted about the episode: its reflections to read, the rest in a line.
function notes(found) {
  const { reflections, spent, ...rest } = found;
  const listed = Array.isArray(reflections) && reflections.length > 0;
  // the opening of an agent in dialogue: instructions, examples, earlier reflections
  const texts = Object.entries(rest).filter(([, value]) => typeof value === "string" && value.length > 120);
  const words = Object.entries(rest).filter(([key]) => !texts.some(([name]) => name === key)).map(([key, value]) => `${key.replaceAll("_", " ")} ${typeof value === "string" ? value : JSON.stringify(value)}`);
  if (spent?.calls > 0) words.push(plural(spent.calls, "model call"), `${number(spent.prompt_tokens)} + ${number(spent.completion_tokens)} tokens`);
  return (listed || texts.length > 0 || words.length > 0) && h("div", { cls: "agent-notes" },
    listed && [h("b", null, plural(reflections.length, "reflection")), h("ol", null, reflections.map((text) => h("li", null, String(text))))],
    texts.map(([key, text]) => lazily(h("details", { cls: "note-text" }, h("summary", null, `${key.replaceAll("_", " ")} · ${plural(text.length, "character")}`)), () => h("pre", null, text))),
    words.length > 0 && h("p", { cls: "muted" }, words.join(" · ")));
}

// Each turn with its requests, whole: a record has only what a request adds to the one before.
function withRequests(turns) {
  let before = [];
  return turns.map((turn) => [turn, turn.calls.map((call) => {
    before = [...before.slice(0, call.same), ...call.messages];
    return { ...call, messages: before };
  })]);
}

function drawTurn(turn, requests, index, view, most, episode) {
  const a = advantage(turn);
  const nll = surprise(turn);
  const known = turn.tokens;
  return h("article", { cls: `turn-card${known?.selected ? " selected" : ""}`, data: { step: turn.step } },
    h("header", null,
      h("b", { cls: "no", title: `turn ${index + 1}` }, String(index + 1)),
      known?.selected && h("span", { cls: "sel", title: `selected by the world model; weight w = ${number(known.weight)}` }, "◆ selected"),
      known && !known.selected && episode.world_model && h("span", { cls: "muted" }, "not selected"),
      a !== null && h("span", { cls: "adv", title: Array.isArray(known.advantage) ? "mean advantage of the action's tokens" : "advantage of the turn" },
        h("span", { cls: "bar" }, a !== 0 && h("i", { cls: a < 0 ? "neg" : "pos", style: { width: `${(50 * Math.abs(a)) / most}%` } })),
        h("span", { cls: tone(a) }, `A ${signed(a)}`)),
      known && known.entropy !== null && h("span", { title: "action entropy (Eq. 4), nats" }, `H ${number(known.entropy)}`),
      nll !== null && h("span", { title: "mean −log p of the next observation's tokens, nats" }, `surprise ${number(nll)}`),
      h("span", { cls: "grow" }),
      turn.finish_reason === "length" && h("span", { cls: "badge warn", title: "finish_reason: length" }, "answer cut off"),
      !turn.valid && h("span", { cls: "badge bad", title: turn.problem || "" }, "invalid action"),
      turn.reward !== 0 && h("span", { cls: `badge ${turn.reward < 0 ? "bad" : "good"}` }, `reward ${signed(turn.reward)}`),
      turn.ended && h("span", { cls: "badge" }, turn.ended === "terminated" ? "ended" : "step budget used up")),
    h("div", { cls: "folds" }, sent(requests), prompt(turn.prompt, index, requests.length > 0), admissible(turn, index)),
    h("div", { cls: "response" }, turn.reasoning && h("div", { cls: "think" }, long(String(turn.reasoning).trim())), view.responses && known?.response?.tokens.length
      ? tokenText(known.response, { clips: false, rho: null }) : response(turn.response),
      turn.problem && h("p", { cls: "problem" }, turn.problem)),
    h("div", { cls: "observation" }, observation(turn, view)));
}

function observation(turn, view) {
  const known = turn.tokens?.observation;
  return view.tokens && known?.tokens.length ? tokenText(known, view) : long(turn.observation);
}

function sent(requests) {
  if (!requests.length) return null;
  const last = requests[requests.length - 1];
  const title = `as sent · ${requests.length > 1 ? `${plural(requests.length, "request")} · ` : ""}${plural(last.messages.length, "message")}`;
  const words = Array.isArray(last.tokens) ? ` · ${number(last.tokens[0])} + ${number(last.tokens[1])} tokens` : "";
  return lazily(h("details", { cls: "sent" }, h("summary", null, title + words)),
    () => h("div", null, requests.map((call, i) => h("div", { cls: "request" },
      requests.length > 1 && h("p", { cls: "muted" }, `request ${i + 1} of ${requests.length}`),
      call.same > 0 && lazily(h("details", { cls: "same" }, h("summary", null, `${plural(call.same, "message")} as before`)),
        () => h("div", null, call.messages.slice(0, call.same).map(message))),
      call.messages.slice(call.same).map(message),
      call.reasoning && message({ role: "reasoning", content: call.reasoning }),
      message({ role: "answer", content: call.text, tool_calls: call.tool_calls, refusal: call.refusal }),
      call.finish_reason && h("p", { cls: "muted small" }, `finish_reason ${call.finish_reason}`)))));
}

function message({ role, content, ...rest }) {
  const text = typeof content === "string" ? content : content === null || content === undefined ? "" : JSON.stringify(content, null, 1);
  const more = Object.entries(rest).filter(([, value]) => value !== null && value !== undefined && !(Array.isArray(value) && !value.length));
  return h("div", { cls: "message", data: { role: String(role) } }, h("span", { cls: "tag" }, String(role)),
    h("pre", null, long(text), more.map(([key, value]) => `\n${key}: ${typeof value === "string" ? value : JSON.stringify(value, null, 1)}`)));
}

function prompt(parts, index, own) {
  const length = parts.reduce((sum, part) => sum + part[1].length, 0);
  const fresh = parts.filter((part) => part[0] === "new").reduce((sum, part) => sum + part[1].split("\n").length, 0);
  const body = () => h("pre", null, parts.map(([kind, text]) => kind === "new" ? h("span", { cls: "new" }, text, "\n")
    : text.split("\n").length <= 2 ? h("span", { cls: "same" }, text, "\n")
      : h("details", { cls: "same" }, h("summary", null, `${plural(text.split("\n").length, "line")} as before`), text)));
  const words = index === 0 || fresh === 0 ? "" : `, ${plural(fresh, "new line")}`;
  return lazily(h("details", { cls: "prompt" }, h("summary", null, `${own ? "environment's prompt" : "prompt"} · ${plural(length, "character")}${fresh === 0 && index > 0 ? ", nothing new" : words}`)), body);
}

function admissible(turn, index) {
  if (!turn.admissible) return null;
  const done = turn.action.trim().toLowerCase();
  return lazily(h("details", { cls: "admissible", data: { turn: index } }, h("summary", null, plural(turn.admissible.length, "admissible action"))),
    () => h("ul", null, turn.admissible.map((action) => h("li", { cls: String(action).trim().toLowerCase() === done ? "chosen" : "" }, String(action)))));
}

// Folded parts are rendered when they are opened first.
function lazily(node, body) {
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(body());
  });
  return node;
}

function response(parts) {
  if (!parts.length) return h("p", { cls: "muted" }, "(empty response)");
  return parts.map(([kind, text]) => {
    if (kind === "text") return text.trim() ? h("div", { cls: "loose" }, long(text.trim())) : null;
    if (kind === "think") return h("div", { cls: "think" }, long(text.trim()));
    if (ACTIONS.has(kind)) return h("div", { cls: "act" }, h("span", { cls: "tag" }, kind), h("code", null, text.trim()));
    return h("div", { cls: "block" }, h("span", { cls: "tag" }, kind), long(text.trim()));
  });
}

function long(text) {
  if (text.length <= LONG) return text;
  const box = h("span", null, text.slice(0, LONG));
  const more = h("button", { cls: "chip", onclick: () => replace(box, text) }, `show ${(text.length - LONG).toLocaleString("en")} more characters`);
  box.append(" … ", more);
  return box;
}
