// Virtual hosts, and how much each may have.

import { all, at, del, get, put } from "../api.js";
import { confirm, dialog, fail, field, notify, parsed } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { button, choice, facts, figure, figures, named, section, table, tag } from "../parts.js";
import { go, link } from "../router.js";
import { may } from "../state.js";
import { listTable, plainTable } from "../table.js";

const LIMITS = 'A JSON object, such as {"max-connections": 100, "max-queues": 1000}; -1 is no limit';
const MOST = 500;
const changed = () => document.dispatchEvent(new CustomEvent("vhosts-changed"));

function edit(known, done) {
  const name = h("input", { name: "name", required: true, maxlength: "255", autocomplete: "off", "data-first": true });
  dialog(known ? `Virtual host ${known.name}` : "New virtual host", [
    !known && field("Name", name),
    field("Description", h("input", { name: "description", value: known?.description, autocomplete: "off", "data-first": Boolean(known) })),
    field("Tags", h("input", { name: "tags", value: known?.tags.join(", "), autocomplete: "off" }), "Words with commas between them"),
    field("Queues are", choice("default_queue_type", ["classic", "quorum", "stream"], known?.default_queue_type), "Where their declaration does not say what they are"),
    field("Limits", h("textarea", { name: "limits", rows: "4", spellcheck: "false", value: known ? JSON.stringify(known.limits, null, 2) : "" }), LIMITS),
  ], {
    action: known ? "Save" : "Create",
    work: async (data) => {
      const wanted = known?.name ?? data.get("name");
      await put(at`vhosts/${wanted}`, { description: data.get("description"), default_queue_type: data.get("default_queue_type"),
        tags: data.get("tags").split(",").map((each) => each.trim()).filter(Boolean), limits: parsed(data.get("limits"), "Limits") });
      notify(known ? `“${wanted}” is changed.` : `The virtual host “${wanted}” is there.`);
      if (!known) changed();
      done(wanted);
    },
  });
}

const list = {
  path: "vhosts",
  title: "Virtual hosts",
  group: "Access",
  show(view) {
    const found = listTable(view, {
      path: "vhosts",
      caption: "Virtual hosts",
      columns: [
        { title: "Name", sort: "name", cell: (each) => named(each.name, "vhosts", each.name) },
        { title: "Description", cell: (each) => each.description || "–" },
        { title: "Tags", cell: (each) => [each.tags.map((word) => tag(word)), each.tracing && tag("traced"), each.suspended > 0 && tag("suspended", "bad")] },
        { title: "Connections", sort: "connections", isNumber: true, cell: (each) => format.count(each.connections) },
        { title: "Queues", sort: "queues", isNumber: true, cell: (each) => format.count(each.queues) },
        { title: "Streams", sort: "streams", isNumber: true, cell: (each) => format.count(each.streams) },
        { title: "In queues", sort: "queued_bytes", isNumber: true, cell: (each) => format.bytes(each.queued_bytes) },
        { title: "Limits", cell: (each) => table(each.limits) },
      ],
      actions: may("administrator") ? [button("New virtual host", () => edit(null, (name) => go("vhosts", name)))] : [],
    });
    replace(view.element, h("h1", {}, "Virtual hosts"), found.element);
  },
};

const one = {
  path: "vhosts/:name",
  async show(view) {
    const { name } = view.names;
    const [does, numbers, about, permissions] = [h("div", { class: "buttons" }), h("div"), h("div"), h("div")];
    let known = null;
    const remove = () => confirm("Delete the virtual host?", "All that is in it goes with it: queues, streams, messages, sessions, permissions.", "Delete", async () => {
      await del(at`vhosts/${name}`);
      notify(`The virtual host “${name}” is deleted.`);
      changed();
      go("vhosts");
    }, name);

    async function load() {
      known = await get(at`vhosts/${name}`, {}, { signal: view.signal });
      replace(numbers, figures(
        figure("connections", format.count(known.connections)), figure("exchanges", format.count(known.exchanges)),
        figure("queues", format.count(known.queues)), figure("streams", format.count(known.streams)),
        figure("in queues", format.bytes(known.queued_bytes)), figure("retained", format.count(known.retained_messages)),
        figure("retained, in bytes", format.bytes(known.retained_bytes)), known.suspended > 0 && figure("suspended", format.count(known.suspended))));
      replace(about, facts([["Description", known.description], ["Tags", known.tags.length ? known.tags.map((word) => tag(word)) : "–"],
        ["Queues are", known.default_queue_type], ["Firehose", known.tracing ? "on" : "off"], ["Limits", table(known.limits)]]));
    }

    async function loadPermissions() {
      const { items, isWhole } = await all("permissions", { vhost: name }, { signal: view.signal }, MOST);
      const kinds = ["configure", "write", "read"].map((kind) =>
        ({ title: kind[0].toUpperCase() + kind.slice(1), cell: (each) => (each[kind] ? h("code", {}, each[kind]) : "nothing") }));
      replace(permissions, plainTable("Permissions", [{ title: "User", cell: (each) => [named(each.user, "users", each.user), " ", each.vhost === "*" && tag("in all virtual hosts")] }, ...kinds], items,
        "Nobody has any by itself."), !isWhole && h("p", { class: "hint" }, "There are more."));
    }

    if (may("administrator")) {
      replace(does, button("Change", () => known && edit(known, () => load().catch(fail))), button("Delete", remove, "danger"));
    }
    replace(view.element, h("p", {}, h("a", { href: link("vhosts") }, "All virtual hosts")),
      h("div", { class: "heading" }, h("h1", {}, "Virtual host ", name), does), numbers, section("What it is", about),
      may("administrator") && section("Permissions", permissions));
    await Promise.all([view.every(5, load), may("administrator") && view.every(10, loadPermissions)]);
  },
};

export default [list, one];
