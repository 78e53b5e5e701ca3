// Roles: permissions that users have by their name.

import { at, del, get, put } from "../api.js";
import { InputError, confirm, dialog, fail, field, notify, parsed } from "../dialogs.js";
import { h, replace } from "../dom.js";
import { button, named, section } from "../parts.js";
import { go, link } from "../router.js";
import { listTable, plainTable } from "../table.js";

const code = (text) => (text ? h("code", {}, text) : "nothing");
const PERMISSIONS = 'By virtual host, such as {"/": {"configure": "", "write": "^shop$", "read": ".*"}}';
const TOPICS = 'By virtual host and exchange, such as {"/": {"amq.topic": {"write": "^plant", "read": ".*"}}}';
const LINES = "Lines as those of Mosquitto, such as: topic read plant/#";

function edit(known, done) {
  const json = (name) => (known && Object.keys(known[name]).length ? JSON.stringify(known[name], null, 2) : "");
  const area = (name, value, hint) => field({ permissions: "Permissions", topic_permissions: "Topic permissions", acl: "Lines" }[name],
    h("textarea", { name, rows: "4", spellcheck: "false", value }), hint);
  dialog(known ? `Role ${known.name}` : "New role", [
    !known && field("Name", h("input", { name: "name", required: true, maxlength: "255", autocomplete: "off", "data-first": true })),
    area("permissions", json("permissions"), PERMISSIONS), area("topic_permissions", json("topic_permissions"), TOPICS),
    area("acl", known ? known.acl.join("\n") : "", LINES),
  ], {
    action: known ? "Save" : "Create",
    work: async (data) => {
      const name = known?.name ?? data.get("name");
      if (!known && await isThere(name)) throw new InputError("There is a role of this name: change that.");
      await put(at`roles/${name}`, { permissions: parsed(data.get("permissions"), "Permissions"),
        topic_permissions: parsed(data.get("topic_permissions"), "Topic permissions"), acl: data.get("acl").split("\n").map((each) => each.trim()).filter(Boolean) });
      notify(`The role “${name}” holds.`);
      done(name);
    },
  });
}

async function isThere(name) {
  const found = await get("roles", { name, page_size: 500 });
  return found.items.some((each) => each.name === name);
}

const list = {
  path: "roles",
  title: "Roles",
  group: "Access",
  needs: "administrator",
  show(view) {
    const found = listTable(view, {
      path: "roles",
      caption: "Roles",
      columns: [
        { title: "Name", sort: "name", cell: (each) => named(each.name, "roles", each.name) },
        { title: "Virtual hosts", cell: (each) => [...new Set([...Object.keys(each.permissions), ...Object.keys(each.topic_permissions)])].join(", ") || "–" },
        { title: "Lines", isNumber: true, cell: (each) => String(each.acl.length) },
      ],
      actions: [button("New role", () => edit(null, (name) => go("roles", name)))],
    });
    replace(view.element, h("h1", {}, "Roles"), found.element);
  },
};

const one = {
  path: "roles/:name",
  needs: "administrator",
  async show(view) {
    const { name } = view.names;
    const [does, permissions, topics, lines] = [h("div", { class: "buttons" }), h("div"), h("div"), h("div")];
    const remove = () => confirm("Delete the role?", "Who has it has nothing by it then.", "Delete", async () => {
      await del(at`roles/${name}`);
      notify(`The role “${name}” is deleted.`);
      go("roles");
    }, name);
    const load = async () => {
      const role = await get(at`roles/${name}`, {}, { signal: view.signal });
      replace(does, button("Change", () => edit(role, () => load().catch(fail))), button("Delete", remove, "danger"));
      replace(permissions, plainTable("Permissions", [
        { title: "Virtual host", cell: (each) => each[0] },
        ...["configure", "write", "read"].map((kind) => ({ title: kind, cell: (each) => code(each[1][kind]) })),
      ], Object.entries(role.permissions)));
      const flat = Object.entries(role.topic_permissions).flatMap(([vhost, found]) => Object.entries(found).map(([exchange, each]) => ({ vhost, exchange, ...each })));
      replace(topics, plainTable("Topic permissions", [
        { title: "Virtual host", cell: (each) => each.vhost }, { title: "Exchange", cell: (each) => each.exchange },
        ...["write", "read"].map((kind) => ({ title: kind, cell: (each) => code(each[kind]) })),
      ], flat));
      replace(lines, role.acl.length ? h("ul", { class: "arguments" }, role.acl.map((each) => h("li", {}, h("code", {}, each)))) : h("p", { class: "empty" }, "There are none."));
    };
    replace(view.element, h("p", {}, h("a", { href: link("roles") }, "All roles")),
      h("div", { class: "heading" }, h("h1", {}, "Role ", name), does),
      section("Permissions", permissions), section("Topic permissions", topics), section("Lines", lines));
    await load();
  },
};

export default [list, one];
