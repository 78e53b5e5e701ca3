// Pieces that many pages have.

import { h } from "./dom.js";
import { plain } from "./format.js";
import { link } from "./router.js";

// Names and what they are: facts([["Type", "classic"], ...]); what is null is left out.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value === "" ? "–" : value))));
}

// A number in large letters.
export function figure(name, value, target) {
  const text = [h("b", {}, value), h("span", {}, name)];
  return target ? h("a", { class: "figure", href: target }, text) : h("div", { class: "figure" }, text);
}

export const figures = (...children) => h("div", { class: "figures" }, children);

// A part of a page with a heading.
export function section(title, ...children) {
  return h("section", { class: "part" }, h("h2", {}, title), children);
}

// A short word in a box: tag("durable"), tag("blocked", "bad").
export const tag = (text, kind = "") => h("span", { class: `tag ${kind}`.trim() }, text);

// Several of them; what is false is left out.
export const tags = (...words) => words.filter(Boolean).map((word) => [tag(word), " "]);

// A row's name, which leads to its own page.
export const named = (text, ...parts) => h("a", { href: link(...parts), class: "name" }, text === "" ? "(no name)" : text);

// Arguments of something as a list.
export function table(value) {
  const pairs = Object.entries(value || {});
  if (!pairs.length) return "–";
  return h("ul", { class: "arguments" }, pairs.map(([name, found]) => h("li", {}, h("code", {}, name), " = ", h("code", {}, plain(found)))));
}

export const button = (text, onclick, kind = "") => h("button", { type: "button", class: kind || null, onclick }, text);
