// Elements from data. Text only ever becomes text nodes: nothing a run holds can turn into markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, item] of Object.entries(value)) node.style.setProperty(key, item);
    } else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name === "cls" ? "class" : name, value === true ? "" : value);
  }
  add(node, children);
  return node;
}

export function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : visible(String(child)));
  }
  return node;
}

export const h = (name, props, ...children) =>
  fill(document.createElement(name), props, children);
export const s = (name, props, ...children) =>
  fill(document.createElementNS(SVG, name), props, children);

export function replace(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

// Control characters as their Unicode pictures, so that text cannot hide or turn itself around.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
export function visible(text) {
  return text.replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en").replace("-", "−");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(Math.max(2, digits - 1)).replace(/\.?0+e/, "e").replaceAll("-", "−");
  return Number(value.toPrecision(digits)).toString().replace("-", "−");
}

export const signed = (value, digits = 3) =>
  value > 0 ? `+${number(value, digits)}` : number(value, digits);
export const tone = (value) => (value > 0 ? "good" : value < 0 ? "bad" : "");
export const percent = (value) =>
  value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
export const inUnit = (value, unit, digits = 3) => (unit === "share" ? percent(value) : number(value, digits));
export const rate = (result) => (result ? percent(result.success_rate) : "–");
export const interval = (result) => (Array.isArray(result?.ci95) ? `${percent(result.ci95[0])} – ${percent(result.ci95[1])}` : "");
export const day = (seconds) => (seconds === null ? "–" : new Date(1000 * seconds).toLocaleString("sv").slice(0, 16));
export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
