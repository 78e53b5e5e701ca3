// Messages as they are looked at: the payload as text, JSON or bytes, properties, headers.

import { h, replace } from "./dom.js";
import { notify } from "./dialogs.js";
import * as format from "./format.js";
import { button, copied, facts, table } from "./parts.js";

// How much of a payload is drawn: a page with more of it is slow.
const MOST_TEXT = 65536;
const MOST_BYTES = 4096;

function octets(base64) {
  return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
}

// Lines of sixteen bytes: where they are, what they are, and as ASCII.
export function dump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const bytes = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${bytes.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

// The text as JSON with indents; null where it is none.
function pretty(text) {
  if (text === null || !/^\s*[[{"\d-]|^\s*(true|false|null)\s*$/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

async function copy(text, block) {
  notify(await copied(text, block) ? "The payload is copied." : "It is selected: copy it by the keyboard.");
}

// A payload as /api/v1 has it: { payload, payload_base64, bytes, is_cut }.
export function payloadView({ payload, payload_base64: base64, bytes, is_cut: isCut }) {
  const data = octets(base64);
  const forms = { Text: payload, JSON: isCut ? null : pretty(payload), Hex: dump(data.subarray(0, MOST_BYTES)) };
  const size = bytes ?? data.length;
  const block = h("pre", { tabindex: "0", role: "region", "aria-label": "Payload" });
  const note = h("p", { class: "hint" });
  const buttons = Object.keys(forms).map((name) => button(name, () => show(name)));
  function show(name) {
    const text = forms[name];
    const most = name === "Hex" ? MOST_BYTES : isCut ? data.length : MOST_TEXT;
    const isWhole = name === "Hex" ? size <= MOST_BYTES : !isCut && text.length <= MOST_TEXT;
    block.textContent = name === "Hex" ? text : text.slice(0, MOST_TEXT);
    note.textContent = isWhole ? format.bytes(size) : `the first ${format.bytes(Math.min(most, size))} of ${format.bytes(size)}`;
    buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.textContent === name)));
  }
  buttons.forEach((each) => {
    each.disabled = forms[each.textContent] === null;
  });
  if (!size) return h("p", { class: "empty" }, "The payload is empty.");
  show(forms.JSON !== null ? "JSON" : payload !== null ? "Text" : "Hex");
  return h("div", { class: "payload" },
    h("div", { class: "tools" }, h("div", { class: "forms", role: "group", "aria-label": "Payload as" }, buttons),
      button("Copy", () => copy(block.textContent, block)), note), block);
}

// What a message is beside its payload: pairs of names and values, properties and headers.
export function messageView(message, pairs) {
  return h("div", { class: "message" }, facts([...pairs,
    ["Properties", table(message.properties)], ["Headers", table(message.headers)]]), payloadView(message));
}

// Messages that open one by one: summary(message) is a line, pairs(message) what else is shown.
export function messageList(messages, summary, pairs) {
  return h("ol", { class: "messages" }, messages.map((message) => {
    const place = h("div");
    const open = (event) => {
      if (event.target.open && !place.firstChild) replace(place, messageView(message, pairs(message)));
    };
    return h("li", {}, h("details", { ontoggle: open }, h("summary", {}, summary(message)), place));
  }));
}
