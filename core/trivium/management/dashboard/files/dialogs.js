// Questions and notices.

import { announce, h } from "./dom.js";

let last = 0;

// An element that is named by a label: { label, input } with ids.
export function field(label, input, hint) {
  last += 1;
  const id = `field-${last}`;
  input.id = id;
  if (hint) input.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: "field" }, h("label", { for: id }, label), input, hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}

// Say what was done, or why not.
export function notify(text, isBad = false) {
  let place = document.getElementById("notices");
  if (!place) {
    place = h("section", { id: "notices", "aria-label": "Notices" });
    document.body.append(place);
  }
  const notice = h("div", { class: isBad ? "notice bad" : "notice", role: isBad ? "alert" : null }, h("span", {}, text));
  notice.append(h("button", { type: "button", class: "plain", "aria-label": "Close this notice", onclick: () => notice.remove() }, "×"));
  place.append(notice);
  while (place.children.length > 4) place.firstChild.remove();
  if (!isBad) {
    announce(text);
    setTimeout(() => notice.remove(), 6000);
  }
}

// What went wrong on a page is not said on the next one.
export const forgetTroubles = () => document.querySelectorAll(".notice.bad").forEach((each) => each.remove());

export const fail = (error) => {
  if (error.name === "AbortError") return;
  if (error.name !== "Problem") throw error;
  if (error.status !== 401) notify(error.message, true);
};

// A window with some content; Escape closes it and the focus goes back. `work` is called when its
// form is sent: the window closes unless that throws, whose reason is then shown in it. What it
// returns is called once the window is closed. There is nothing to cancel where it only tells.
export function dialog(title, content, { action = "OK", isDanger = false, tells = false, work } = {}) {
  const before = document.activeElement;
  let isBusy = false;
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: isDanger ? "danger" : "main" }, action);
  const close = () => element.close();
  const send = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    trouble.hidden = true;
    try {
      const then = await work(new FormData(form));
      close();
      then?.();
    } catch (error) {
      if (error.name !== "Problem" && error.name !== "InputError") throw error;
      trouble.textContent = error.message;
      trouble.hidden = false;
    } finally {
      isBusy = false;
    }
  };
  const form = h("form", { onsubmit: send }, h("h2", { id: "dialog-title" }, title), content, trouble,
    h("div", { class: "buttons" }, !tells && h("button", { type: "button", onclick: close }, "Cancel"), button));
  const element = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  element.addEventListener("close", () => {
    element.remove();
    if (before?.isConnected) before.focus();
  });
  document.body.append(element);
  element.showModal();
  (form.querySelector("[data-first]") || form.querySelector("input, select, textarea, .buttons button")).focus();
  return element;
}

// A window is of the page that has opened it.
export const closeDialogs = () => document.querySelectorAll("dialog").forEach((each) => each.close());

// What a form says that it cannot.
export class InputError extends Error {
  constructor(text) {
    super(text);
    this.name = "InputError";
  }
}

// Ask before something is done. With `name` it must be typed: what goes then does not come back.
export function confirm(title, text, action, work, name) {
  const content = [h("p", {}, text)];
  if (name !== undefined) {
    const input = h("input", { name: "name", autocomplete: "off", spellcheck: "false", required: true, "data-first": true });
    content.push(field(`Type “${name}” to go on`, input));
  }
  dialog(title, content, {
    action,
    isDanger: true,
    work: async (data) => {
      if (name !== undefined && data.get("name") !== name) throw new InputError("That is another name.");
      await work();
    },
  });
}

// A text of JSON as an object. Throws InputError.
export function parsed(text, what) {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new InputError(`${what}: ${error.message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new InputError(`${what} is a JSON object`);
  return value;
}
