// Users of the broker's own, and what each may do.

import { all, at, del, get, put, request } from "../api.js";
import { InputError, confirm, dialog, fail, field, notify, parsed } from "../dialogs.js";
import { h, replace } from "../dom.js";
import { actionsTitle, button, choice, facts, named, section, table, tag } from "../parts.js";
import { keyTable } from "./keys.js";
import { patternFields, patternsOf } from "../patterns.js";
import { go, link } from "../router.js";
import { state } from "../state.js";
import { listTable, plainTable } from "../table.js";

const TAGS = ["administrator", "monitoring", "policymaker", "management"];
const LIMITS = 'A JSON object, such as {"max-connections": 10}; -1 is no limit';
const MOST = 1000;

const words = (data, name) => data.get(name).split(",").map((each) => each.trim()).filter(Boolean);
const tagsField = (tags) => [
  field("Tags", h("input", { name: "tags", value: tags.join(", "), autocomplete: "off", list: "user-tags" }), `Words with commas between them: ${TAGS.join(", ")}`),
  h("datalist", { id: "user-tags" }, TAGS.map((value) => h("option", { value })))];
const passwordFields = () => ["password", "again"].map((name) =>
  field(name === "again" ? "Once more" : "Password", h("input", { name, type: "password", required: true, autocomplete: "new-password" })));

function password(data) {
  if (data.get("password") !== data.get("again")) throw new InputError("The passwords are not the same.");
  return data.get("password");
}

function create() {
  dialog("New user", [
    field("Name", h("input", { name: "name", required: true, maxlength: "255", autocomplete: "off", "data-first": true })),
    passwordFields(), tagsField([]),
  ], {
    action: "Create",
    work: async (data) => {
      const name = data.get("name");
      try {
        await request("PUT", at`users/${name}`, { body: { password: password(data), tags: words(data, "tags") }, headers: { "If-None-Match": "*" } });
      } catch (error) {
        if (error.status === 412) throw new InputError("There is a user of this name.");
        throw error;
      }
      notify(`The user “${name}” is there.`);
      go("users", name);
    },
  });
}

const list = {
  path: "users",
  title: "Users",
  group: "Access",
  needs: "administrator",
  show(view) {
    const found = listTable(view, {
      path: "users",
      caption: "Users",
      columns: [
        { title: "Name", sort: "name", cell: (each) => named(each.name, "users", each.name) },
        { title: "Tags", cell: (each) => (each.tags.length ? each.tags.map((word) => tag(word)) : "–") },
        { title: "Roles", cell: (each) => (each.roles.length ? each.roles.map((role) => named(role, "roles", role)) : "–") },
        { title: "Limits", cell: (each) => table(each.limits) },
        { title: "From", sort: "is_configured", cell: (each) => (each.is_configured ? "the configuration" : "here") },
      ],
      actions: [button("New user", create)],
    });
    replace(view.element, h("h1", {}, "Users"), found.element);
  },
};

// What may be changed of one: a form for each.
function changes(user, changed) {
  const path = at`users/${user.name}`;
  const done = (text) => {
    notify(text);
    changed();
  };
  const form = (title, content, body, text) => dialog(title, content, {
    action: "Save",
    work: async (data) => {
      await put(path, body(data));
      done(text);
    },
  });
  const remove = () => confirm("Delete the user?", "Its connections are closed, its keys and permissions go with it.", "Delete", async () => {
    await del(path);
    notify(`The user “${user.name}” is deleted.`);
    go("users");
  }, user.name);
  return [
    button("Password", () => form(`Password of ${user.name}`, passwordFields(), (data) => ({ password: password(data) }), "The password is changed.")),
    button("Tags", () => form(`Tags of ${user.name}`, tagsField(user.tags), (data) => ({ tags: words(data, "tags") }), "The tags are changed.")),
    button("Roles", () => form(`Roles of ${user.name}`, field("Roles", h("input", { name: "roles", value: user.roles.join(", "), autocomplete: "off" }), "Words with commas between them"),
      (data) => ({ roles: words(data, "roles") }), "The roles are changed.")),
    button("Limits", () => form(`Limits of ${user.name}`, field("Limits", h("textarea", { name: "limits", rows: "4", spellcheck: "false", value: JSON.stringify(user.limits, null, 2) }), LIMITS),
      (data) => ({ limits: parsed(data.get("limits"), "Limits") }), "The limits are changed.")),
    button("Delete", remove, "danger")];
}

const everywhere = (vhost) => (vhost === "*" ? "all" : vhost);

// Permissions, or those for topics: grant, change and take back.
function grants({ user, isForTopics, changed }) {
  const things = isForTopics ? "topic-permissions" : "permissions";
  const path = (vhost, exchange) => at`users/${user}/` + things + at`/${vhost}` + (isForTopics ? at`/${exchange}` : "");
  const edit = (known) => {
    const vhost = choice("vhost", [...state.vhosts, "*"], known?.vhost, { "*": "all of them" });
    const exchange = h("input", { name: "exchange", value: known?.exchange ?? "amq.topic", required: true, maxlength: "255" });
    vhost.disabled = exchange.disabled = Boolean(known);
    dialog(`${isForTopics ? "Topic permissions" : "Permissions"} of ${user}`, [field("Virtual host", vhost), isForTopics && field("Exchange", exchange), patternFields(known, isForTopics)], {
      action: "Save",
      work: async (data) => {
        await put(path(vhost.value, exchange.value), patternsOf(data, isForTopics));
        notify("The permissions hold.");
        changed();
      },
    });
  };
  const remove = (each) => confirm("Take the permissions back?", `“${user}” has none of its own in ${everywhere(each.vhost)} then.`, "Take back", async () => {
    await del(path(each.vhost, each.exchange));
    notify("The permissions are taken back.");
    changed();
  });
  const columns = (isFixed) => [
    { title: "Virtual host", cell: (each) => everywhere(each.vhost) },
    isForTopics && { title: "Exchange", cell: (each) => each.exchange },
    ...(isForTopics ? ["write", "read"] : ["configure", "write", "read"]).map((kind) =>
      ({ title: kind[0].toUpperCase() + kind.slice(1), cell: (each) => (each[kind] ? h("code", {}, each[kind]) : "nothing") })),
    !isFixed && { title: actionsTitle(), cell: (each) => h("div", { class: "does" }, button("Change", () => edit(each)), button("Take back", () => remove(each), "danger")) },
  ].filter(Boolean);
  return (items, isFixed) => [plainTable(isForTopics ? "Topic permissions" : "Permissions", columns(isFixed), items,
    isForTopics ? "Topics are not looked at: what the exchange allows holds for all." : "It may do nothing by itself."),
  !isFixed && h("div", { class: "buttons" }, button(isForTopics ? "Grant topics" : "Grant", () => edit(null)))];
}

const one = {
  path: "users/:name",
  needs: "administrator",
  async show(view) {
    const { name } = view.names;
    const [does, about, permissions, topics] = [h("div", { class: "buttons" }), h("div"), h("div"), h("div")];
    const options = { signal: view.signal };
    const load = async () => {
      const [user, some, others] = await Promise.all([get(at`users/${name}`, {}, options),
        all("permissions", { user: name }, options, MOST), all("topic-permissions", { user: name }, options, MOST)]);
      const again = () => load().catch(fail);
      replace(does, user.is_configured ? h("span", { class: "hint" }, "Of the configuration: it is changed there.") : changes(user, again));
      replace(about, facts([["Tags", user.tags.length ? user.tags.map((word) => tag(word)) : "–"],
        ["Roles", user.roles.length ? user.roles.map((role) => [named(role, "roles", role), " "]) : "–"],
        ["Virtual host", user.virtual_host], ["SCRAM", user.has_scram ? "yes" : "no"], ["Limits", table(user.limits)]]));
      replace(permissions, grants({ user: name, isForTopics: false, changed: again })(some.items, user.is_configured));
      replace(topics, grants({ user: name, isForTopics: true, changed: again })(others.items, user.is_configured));
    };
    replace(view.element, h("p", {}, h("a", { href: link("users") }, "All users")),
      h("div", { class: "heading" }, h("h1", {}, "User ", name), does),
      section("What it is", about), section("Permissions", permissions), section("Topic permissions", topics),
      section("API keys", keyTable(view, at`users/${name}/keys`, name)));
    await load();
  },
};

export default [list, one];
