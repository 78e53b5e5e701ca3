// Lines over time, drawn as SVG. What a chart shows stands beside it as text, for whoever cannot
// see lines or tell their colours.

import { h, replace, s } from "./dom.js";
import { duration, hour } from "./format.js";

const WIDTH = 600;
const HEIGHT = 160;
const LEFT = 4;
const TOP = 8;
const BOTTOM = 18;
// Milliseconds from left to right where little has passed.
const LEAST = 30000;
export const COLOURS = 8;

// Lines whose names may come and go:
//
//   title    what is shown
//   text     makes text of a value
//   seconds  how much time there is from left to right, once so much has passed
//   base     of what is round: 1000, or 1024 for bytes
export class Chart {
  #lines = new Map();
  #title;
  #text;
  #span;
  #svg;
  #legend;
  #base;
  #now = 0;

  constructor(title, text, { seconds = 300, level = 2, base = 1000 } = {}) {
    this.#base = base;
    this.#title = title;
    this.#text = text;
    this.#span = seconds * 1000;
    this.#svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, preserveAspectRatio: "none" });
    this.#legend = h("ul", { class: "legend" });
    this.element = h("figure", { class: "chart" }, h(`h${level}`, { class: "chart-title" }, title),
      h("div", { class: "plot" }, this.#svg), h("figcaption", {}, this.#legend));
  }

  // Another moment: { name: value }; a value that is not known is null.
  add(at, values) {
    this.#now = Math.max(this.#now, at);
    for (const [name, value] of Object.entries(values)) {
      if (value === null || value === undefined) continue;
      if (!this.#lines.has(name)) this.#lines.set(name, []);
      const points = this.#lines.get(name);
      points.push([at, value]);
      while (points.length && points[0][0] < this.#now - this.#span) points.shift();
    }
  }

  draw() {
    const most = scale(Math.max(0, ...[...this.#lines.values()].flatMap((points) => points.map(([, value]) => value))), this.#base);
    const first = Math.min(this.#now, ...[...this.#lines.values()].map((points) => points[0]?.[0] ?? this.#now));
    const span = Math.min(Math.max(this.#now - first, LEAST), this.#span);
    const x = (at) => LEFT + ((at - this.#now + span) / span) * (WIDTH - 2 * LEFT);
    const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const height = y(most * part);
      parts.push(s("line", { class: "grid", x1: LEFT, x2: WIDTH - LEFT, y1: height, y2: height }));
    }
    const items = [];
    let index = 0;
    for (const [name, points] of this.#lines) {
      const colour = `c${index % COLOURS}`;
      index += 1;
      const path = points.map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      parts.push(s("path", { class: `line ${colour}`, d: path }));
      const last = points.at(-1);
      items.push(h("li", {}, h("span", { class: `mark ${colour}`, "aria-hidden": "true" }), `${name} `,
        h("b", {}, last ? this.#text(last[1]) : "–")));
    }
    this.#svg.setAttribute("aria-label", `${this.#title}, the last ${duration(span)}, at most ${this.#text(most)}`);
    replace(this.#svg, parts);
    replace(this.#legend, items.length ? items : h("li", { class: "empty" }, "Nothing yet"));
    let scales = this.element.querySelector(".scales");
    if (!scales) {
      scales = h("div", { class: "scales", "aria-hidden": "true" });
      this.element.querySelector(".plot").append(scales);
    }
    replace(scales, h("span", {}, this.#text(most)), h("span", {}, this.#text(most / 2)), h("span", {}, this.#now ? hour(this.#now) : ""));
  }
}

// The next round number.
function scale(most, base) {
  if (most <= 0) return 1;
  const unit = base ** Math.floor(Math.log(most) / Math.log(base));
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, base];
  return unit * (steps.find((step) => step * unit >= most) ?? base);
}

// How full something is.
export function gauge(label, value, limit, text, isBad = false) {
  const share = limit > 0 ? Math.min(value / limit, 1) : 0;
  return h("div", { class: isBad ? "gauge bad" : "gauge" }, h("span", {}, label), h("b", {}, text),
    limit > 0 && h("div", { class: "bar", "aria-hidden": "true" }, h("div", { style: { width: `${(share * 100).toFixed(1)}%` } })));
}
