// Pieces that many pages have.

import { get } from "./api.js";
import { fail } from "./dialogs.js";
import { h, replace } from "./dom.js";
import { plain } from "./format.js";
import { link } from "./router.js";

let lists = 0;

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

// Several of them, in rows of about the same length: none stands alone.
const ROWS = { wide: 8, middle: 5, narrow: 3 };

export function figures(...children) {
  const shown = children.filter(Boolean);
  const columns = (most) => Math.ceil(shown.length / Math.ceil(shown.length / most));
  return h("div", { class: "figures", style: Object.fromEntries(Object.entries(ROWS).map(([name, most]) => [`--${name}`, columns(most)])) }, shown);
}

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

// Buttons, of which some cannot be pressed, and why: offers([a button, ""], [another one, "the reason"]).
export function offers(...pairs) {
  for (const [each, reason] of pairs) each.disabled = Boolean(reason);
  const reasons = [...new Set(pairs.map(([, reason]) => reason).filter(Boolean))];
  return [pairs.map(([each]) => each), reasons.length > 0 && h("p", { class: "hint reasons" }, reasons.join(" "))];
}

// Why something is not offered; "" where it is. `allowed` is what access() says.
export const refusal = (allowed, kind, name) => (allowed[kind] ? "" : `You may not ${kind} “${name}”.`);

// A link to a page that looks as a button does.
export const leads = (text, ...parts) => h("a", { class: "button", href: link(...parts) }, text);

// Copy a text, which `block` shows; false where that is selected instead, for the keyboard to copy.
export async function copied(text, block) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not over plain HTTP.
    getSelection().selectAllChildren(block);
    if (!document.execCommand("copy")) return false;
    getSelection().removeAllRanges();
  }
  return true;
}

// The heading of a column of buttons.
export const actionsTitle = () => h("span", { class: "unseen" }, "Actions");

// One of some values; `texts` says how they are called where that is something else.
export const choice = (name, values, chosen, texts = {}) => h("select", { name },
  values.map((value) => h("option", { value, selected: value === chosen }, texts[value] ?? value)));

// Suggests names of what is in a list, at path(), while something is typed into an input.
export function names(input, path) {
  lists += 1;
  const list = h("datalist", { id: `names-${lists}` });
  let typing = 0;
  const load = async () => {
    const typed = input.value;
    try {
      const found = await get(path(), { name: typed, page_size: 20 });
      if (input.value === typed) replace(list, found.items.map((item) => h("option", { value: item.name })));
    } catch (error) {
      fail(error);
    }
  };
  input.setAttribute("list", list.id);
  input.setAttribute("autocomplete", "off");
  input.addEventListener("focus", load);
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(load, 250);
  });
  return list;
}
