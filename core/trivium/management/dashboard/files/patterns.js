// Patterns of permissions: for names, or for routing keys.

import { field } from "./dialogs.js";
import { h } from "./dom.js";

const TEXTS = { configure: "Configure", write: "Write", read: "Read" };
const kinds = (isForTopics) => (isForTopics ? ["write", "read"] : ["configure", "write", "read"]);

export const patternFields = (known, isForTopics) => kinds(isForTopics).map((kind) =>
  field(TEXTS[kind], h("input", { name: kind, value: known ? known[kind] : ".*", autocomplete: "off", spellcheck: "false" }),
    kind === "read" ? "Regular expressions; an empty one allows nothing" : undefined));

export const patternsOf = (data, isForTopics) => Object.fromEntries(kinds(isForTopics).map((kind) => [kind, data.get(kind)]));
