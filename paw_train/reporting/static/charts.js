// Curves as SVG: thinned to the pixels there are, hovered together, brushed together.

import { h, inUnit, interval, number, percent, replace, s } from "./dom.js";

const TALL = 132;
const PAD = { left: 58, right: 10, top: 8, bottom: 20 };

function ticks(low, high, count) {
  const span = high - low || 1;
  const raw = span / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * unit).find((size) => size >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

// Powers of ten; on a short axis 2 and 5 times them as well.
function logTicks(low, high) {
  const powers = [];
  for (let p = Math.floor(Math.log10(low)); 10 ** p <= high; p += 1) powers.push(10 ** p);
  const found = high / low < 150 ? powers.flatMap((power) => [power, 2 * power, 5 * power]) : powers.filter((_, i) => i % Math.ceil(powers.length / 7) === 0);
  return found.filter((v) => v >= low && v <= high);
}

// The ends of the value axis. It spans at least a tenth of the largest value (of shares, 0.1): noise looks small.
function ends(values, share) {
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  if (low === 0 && high === 0) return [0, share ? 0.1 : 1];
  const lacking = Math.max(0, (share ? 0.1 : 0.1 * Math.max(Math.abs(low), Math.abs(high))) - (high - low));
  let [from, to] = [low - lacking / 2, high + lacking / 2];
  if (low >= 0 && from < 0) [from, to] = [0, to - from];
  if (share && high <= 1 && to > 1) [from, to] = [from - (to - 1), 1];
  return [from, to];
}

// As few digits as say where a tick is, and no fewer than two.
function tickLabels(values, share) {
  if (share) return tickLabels(values.map((v) => 100 * v)).map((text) => `${text} %`);
  const off = Math.abs(values[1] - values[0] || 1) / 100;
  let digits = 2;
  while (digits < 7 && values.some((v) => Math.abs(Number(v.toPrecision(digits)) - v) > off)) digits += 1;
  return values.map((v) => number(v, digits));
}

// The lowest and highest point of every pixel column: a spike never gets lost.
function thinned(points, columns) {
  if (points.length <= 2 * columns) return points;
  const kept = [];
  const size = points.length / columns;
  for (let c = 0; c < columns; c += 1) {
    const part = points.slice(Math.floor(c * size), Math.floor((c + 1) * size));
    if (!part.length) continue;
    let low = part[0];
    let high = part[0];
    for (const point of part) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]).slice(0, low === high ? 1 : 2));
  }
  return kept;
}

function brushable(node, brush, toUpdate) {
  let from = null;
  const box = s("rect", { class: "brush", visibility: "hidden" });
  const place = (event) => event.clientX - node.getBoundingClientRect().left;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = place(event);
    node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    const x = place(event);
    brush.hover(toUpdate(x));
    if (from === null || Math.abs(x - from) < 4) return;
    node.append(box);
    box.setAttribute("visibility", "visible");
    box.setAttribute("x", Math.min(from, x));
    box.setAttribute("width", Math.abs(x - from));
    box.setAttribute("y", 0);
    box.setAttribute("height", node.getAttribute("height"));
  });
  node.addEventListener("pointerup", (event) => {
    const x = place(event);
    const start = from;
    from = null;
    box.setAttribute("visibility", "hidden");
    if (start !== null && Math.abs(x - start) >= 4)
      brush.choose(...[toUpdate(start), toUpdate(x)].sort((a, b) => a - b));
  });
  node.addEventListener("pointercancel", () => { from = null; box.setAttribute("visibility", "hidden"); });
  node.addEventListener("pointerleave", () => from === null && brush.hover(null));
  node.addEventListener("dblclick", () => brush.clear());
}

// The mean of the `width` neighbours of every point, fewer at the ends.
export function smoothed(points, width) {
  if (width <= 1 || points.length < 2) return points;
  const half = Math.floor(width / 2);
  const sums = [0];
  for (const [, v] of points) sums.push(sums[sums.length - 1] + v);
  return points.map(([u], i) => {
    const [first, end] = [Math.max(0, i - half), Math.min(points.length, i + half + 1)];
    return [u, (sums[end] - sums[first]) / (end - first)];
  });
}

// One measurement of one run, or of several over one another.
export class Chart {
  // series: [{label, colour, updates, values, checks, band}], all of the same measurement; checks have a rate and
  // perhaps its interval, band has [low, high] at each update. `holds` are values that the axis has to reach.
  constructor({ name, title, meaning, unit, log, across, tall, holds, legend }, series, brush) {
    Object.assign(this, { name, unit, log, across: across || "u", tall: tall || TALL, holds: holds || [] });
    this.svg = s("svg", { height: this.tall, class: "chart", role: "img", "aria-label": title });
    this.value = h("output", null);
    this.checked = h("small", { cls: "checked" });
    this.node = h("figure", { data: { metric: name } },
      h("figcaption", null, h("b", { title: name }, title), this.value, meaning && h("small", null, meaning), this.checked,
        legend && series.length > 1 && h("small", null, series.map(({ label, colour }) => [swatch(colour), label, " "]))), this.svg);
    brushable(this.svg, brush, (x) => this.updateAt(x));
    this.update(series);
  }

  update(series) {
    this.series = series;
  }

  draw(chosen, width = 1) {
    const wide = this.node.clientWidth;
    const reached = this.series.flatMap(({ updates, checks }) => (updates.length ? [updates[0], updates[updates.length - 1], ...(checks || []).map((v) => v.update)] : []));
    if (!wide || !reached.length) return;
    let [from, to] = chosen || [Math.min(...reached), Math.max(...reached)];
    if (from === to) [from, to] = [from - 1, to + 1];
    this.lines = this.series.map((one) => {
      const points = [];
      for (let i = 0; i < one.updates.length; i += 1)
        if (one.values[i] !== null && one.values[i] !== undefined) points.push([one.updates[i], one.values[i]]);
      const within = ([u]) => u >= from && u <= to;
      const checks = (one.checks || []).map((v) => [v.update, v.success_rate, v]).filter(within);
      const band = (one.band || []).map(([least, most], i) => [one.updates[i], least, most]).filter(within);
      // smoothed before it is cut, so that the ends of a choice have their neighbours
      return { ...one, raw: points.filter(within), points: smoothed(points, width).filter(within), checks, band };
    });
    const all = this.lines.flatMap(({ raw, checks, band }) => [
      ...[...raw, ...checks].map((p) => p[1]), ...checks.flatMap((p) => p[2].ci95 || []), ...band.flatMap((p) => p.slice(1))]);
    if (!all.length) return void replace(this.svg);
    const [least, most] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    const log = this.log && least > 0 && most > 30 * least;
    const [low, high] = log ? [least / 1.3, 1.3 * most] : ends([...all, ...this.holds], this.unit === "share");
    const [w, tall] = [wide - PAD.left - PAD.right, this.tall - PAD.top - PAD.bottom];
    const x = (u) => PAD.left + ((u - from) / (to - from)) * w;
    const scale = log ? Math.log10 : Number;
    const y = (v) => PAD.top + tall - ((scale(v) - scale(low)) / (scale(high) - scale(low))) * tall;
    Object.assign(this, { x, y, from, to, w });
    this.svg.setAttribute("width", wide);
    this.svg.setAttribute("viewBox", `0 0 ${wide} ${this.tall}`);
    const columns = Math.max(50, Math.floor(w));
    const plain = (points) => points.map(([u, v]) => `${x(u).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
    const path = (points) => plain(thinned(points, columns));
    this.cross = s("line", { class: "cross", y1: PAD.top, y2: PAD.top + tall, visibility: "hidden" });
    this.marks = this.lines.map(({ colour }) => s("circle", { class: `point c${colour}`, r: 3.5, visibility: "hidden" }));
    const levels = log ? logTicks(low, high) : ticks(low, high, 4);
    const labels = log ? levels.map((v) => number(v)) : tickLabels(levels, this.unit === "share");
    replace(this.svg,
      levels.map((v, i) => [
        s("line", { class: "gridline", x1: PAD.left, x2: wide - PAD.right, y1: y(v), y2: y(v) }),
        s("text", { class: "tick", x: PAD.left - 6, y: y(v) + 3.5, "text-anchor": "end" }, labels[i])]),
      ticks(from, to, 4).filter(Number.isInteger).map((u) => s("text", { class: "tick", x: x(u), y: this.tall - 5, "text-anchor": "middle" }, String(u))),
      this.lines.map(({ band, colour }) => band.length > 0 && s("polygon", { class: `band c${colour}`,
        points: plain([...band.map(([u, , top]) => [u, top]), ...band.map(([u, foot]) => [u, foot]).reverse()]) })),
      width > 1 && this.lines.map(({ raw, colour }) => raw.length > 1 && s("polyline", { class: `raw c${colour}`, points: path(raw) })),
      this.lines.map(({ points, colour, checks }) => points.length === 1
        ? s("circle", { class: `alone c${colour}`, cx: x(points[0][0]), cy: y(points[0][1]), r: 3 })
        : points.length > 1 && s("polyline", { class: `line c${colour}${checks.length > 1 ? " beside" : ""}`, points: path(points) })),
      this.lines.map(({ checks, colour }) => [
        checks.length > 1 && s("polyline", { class: `checks c${colour}`, points: path(checks) }),
        checks.map(([u, , { ci95 }]) => ci95 && s("line", { class: `whisker c${colour}`, x1: x(u), x2: x(u), y1: y(ci95[0]), y2: y(ci95[1]) })),
        checks.map(([u, v, check]) => s("circle", { class: `check c${colour}`, cx: x(u), cy: y(v), r: 3.5 },
          s("title", null, `validation${u === 0 ? " at the start" : `, update ${u}`}: ${percent(v)} ${interval(check)}`)))]),
      this.cross, this.marks);
    this.drawChecked();
    this.hover(null);
  }

  // Validation in words: what the start reached, and the last check.
  drawChecked() {
    const found = this.lines.filter(({ checks }) => checks.length);
    replace(this.checked, found.map(({ checks, colour }) => h("span", null, swatch(colour),
      h("b", null, "validation "), checks.length > 1 && `${percent(checks[0][1])}${checks[0][0] === 0 ? " at the start" : ""} → `, percent(checks.at(-1)[1]))));
  }

  updateAt(px) {
    if (!this.lines?.some(({ points }) => points.length)) return null;
    const u = Math.round(this.from + ((px - PAD.left) / this.w) * (this.to - this.from));
    return Math.max(Math.ceil(this.from), Math.min(Math.floor(this.to), u));
  }

  hover(update) {
    if (!this.lines || !this.cross) return;
    const shown = update !== null;
    // what was measured, not the smoothed line's
    const found = this.lines.map(({ raw }) => (raw.length ? raw[shown ? nearest(raw, update) : raw.length - 1] : null));
    const first = found.find((point) => point !== null);
    if (!first) return;
    const state = shown ? "visible" : "hidden";
    this.cross.setAttribute("visibility", state);
    this.cross.setAttribute("x1", this.x(shown ? update : first[0]));
    this.cross.setAttribute("x2", this.x(shown ? update : first[0]));
    found.forEach((point, i) => {
      this.marks[i].setAttribute("visibility", point && shown ? "visible" : "hidden");
      if (!point) return;
      this.marks[i].setAttribute("cx", this.x(point[0]));
      this.marks[i].setAttribute("cy", this.y(point[1]));
    });
    const several = this.lines.length > 1;
    replace(this.value, h("small", null, shown ? `${this.across}${several ? update : first[0]} ` : "last "),
      found.map((point, i) => h("span", { title: this.lines[i].label },
        several && swatch(this.lines[i].colour), point ? inUnit(point[1], this.unit, several ? 3 : 4) : "–")));
  }
}

const swatch = (colour) => h("i", { cls: `swatch c${colour}` });

// The place of the first point at or after an update; the last one if none is.
function nearest(points, update) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < update) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The whole run in one strip, with the part that the curves show.
export class Overview {
  constructor(data, brush) {
    this.svg = s("svg", { height: 46, class: "overview", role: "img", "aria-label": "the whole run; drag to choose updates" });
    this.node = h("div", { cls: "overview-box" }, this.svg);
    brushable(this.svg, brush, (x) => this.updateAt(x));
    this.update(data);
  }

  update(data) {
    this.updates = data.update;
    this.values = data.values.success_rate || data.values.reward_mean || Object.values(data.values)[0] || [];
  }

  updateAt(px) {
    const [first, last] = [this.updates[0], this.updates[this.updates.length - 1]];
    const u = Math.round(first + (px / (this.wide || 1)) * (last - first));
    return Math.max(first, Math.min(last, u));
  }

  draw(chosen) {
    this.wide = this.node.clientWidth;
    if (!this.wide || !this.updates.length) return;
    const [first, last] = [this.updates[0], this.updates[this.updates.length - 1]];
    const x = (u) => ((u - first) / Math.max(1, last - first)) * this.wide;
    const points = this.updates.map((u, i) => [u, this.values[i]]).filter(([, v]) => v !== null && v !== undefined);
    const low = Math.min(0, ...points.map(([, v]) => v));
    const high = points.reduce((a, [, v]) => Math.max(a, v), low + 1e-9);
    const y = (v) => 40 - ((v - low) / (high - low)) * 34;
    const line = thinned(points, Math.floor(this.wide)).map(([u, v]) => `${x(u).toFixed(1)},${y(v).toFixed(1)}`);
    this.svg.setAttribute("width", this.wide);
    replace(this.svg,
      line.length > 1 && s("polygon", { class: "area", points: `${x(points[0][0])},42 ${line.join(" ")} ${x(points[points.length - 1][0])},42` }),
      chosen && [
        s("rect", { class: "outside", x: 0, y: 0, width: Math.max(0, x(chosen[0])), height: 46 }),
        s("rect", { class: "outside", x: x(chosen[1]), y: 0, width: Math.max(0, this.wide - x(chosen[1])), height: 46 }),
        s("rect", { class: "inside", x: x(chosen[0]), y: 1, width: Math.max(2, x(chosen[1]) - x(chosen[0])), height: 44 })]);
  }
}
