// API keys: what stands for a user's password, may do less, and can be taken back.

import { at, del, post } from "../api.js";
import { InputError, confirm, dialog, fail, field, notify } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { actionsTitle, button, copied, named, names, tag } from "../parts.js";
import { may, state } from "../state.js";
import { listTable } from "../table.js";

const SCOPES = "Words with spaces between them, such as tag:monitoring read:*/*; without any it may what the user may";

// The secret is on this page, once, and nowhere else.
function showSecret(made) {
  const secret = h("code", { class: "secret" }, made.key);
  const said = h("p", { class: "hint", role: "status" });
  const copy = async () => {
    said.textContent = await copied(made.key, secret) ? "It is copied." : "It is selected: copy it by the keyboard.";
  };
  dialog("The new key", [
    h("p", {}, `It is for “${made.user}”. It is shown this once: the broker keeps its digest alone.`),
    h("p", {}, secret, " ", button("Copy", copy)), said,
  ], { action: "Done", tells: true, work: () => {} });
}

// When a field of date and time says; 0 where it is empty.
function moment(text) {
  if (!text) return 0;
  const at = new Date(text).getTime();
  if (Number.isNaN(at)) throw new InputError("That is no time.");
  return at;
}

// Ask what a key is to be, and make it. Without `user` that is asked too.
export function create(user, changed) {
  const owner = h("input", { name: "user", value: state.caller.name, required: true, maxlength: "255", "data-first": true });
  dialog(user === undefined ? "New key" : `New key of ${user}`, [
    user === undefined && [field("User", owner), names(owner, () => "users")],
    field("Scopes", h("textarea", { name: "scopes", rows: "3", spellcheck: "false", "data-first": user !== undefined }), SCOPES),
    field("Expires", h("input", { name: "expires", type: "datetime-local" }), "Without a time it does not"),
  ], {
    action: "Create",
    work: async (data) => {
      const scopes = data.get("scopes").split(/\s+/).filter(Boolean);
      const body = { scopes: scopes.length ? scopes : null, expires_at: moment(data.get("expires")) };
      const made = await post(at`users/${user ?? data.get("user")}/keys`, body);
      changed().catch(fail);
      return () => showSecret(made);
    },
  });
}

const remove = (key, changed) => confirm("Take the key back?", `Who shows the key ${key.id} of “${key.user}” is not let in any more, and who is in by it is not for long.`, "Take back", async () => {
  await del(at`keys/${key.id}`);
  notify("The key is taken back.");
  changed().catch(fail);
});

// A list of keys: of all users, or of one.
export function keyTable(view, path, user) {
  const found = listTable(view, {
    path,
    caption: "API keys",
    search: false,
    columns: [
      { title: "Key", sort: "id", cell: (each) => h("code", {}, each.id) },
      user === undefined && { title: "User", sort: "user", cell: (each) => named(each.user, "users", each.user) },
      { title: "Scopes", cell: (each) => (each.scopes === null ? "all that the user may" : each.scopes.map((word) => [tag(word), " "])) },
      { title: "Expires", sort: "expires_at", cell: (each) => (each.expires_at ? format.time(each.expires_at) : "never") },
      { title: actionsTitle(), cell: (each) => h("div", { class: "does" }, button("Take back", () => remove(each, found.load), "danger")) },
    ].filter(Boolean),
    actions: [button("New key", () => create(user, found.load))],
  });
  return found.element;
}

export default {
  path: "keys",
  title: "API keys",
  group: "Access",
  isOffered: () => may("administrator") || state.caller.has_own_keys,
  show(view) {
    // Who is no administrator has its own.
    replace(view.element, h("h1", {}, "API keys"), keyTable(view, "keys", may("administrator") ? undefined : state.caller.name));
  },
};
