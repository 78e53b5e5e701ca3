// Policies, and those of operators, which bound the others.

import { at, del, get, inVhost, put } from "../api.js";
import { InputError, confirm, dialog, fail, field, notify, parsed } from "../dialogs.js";
import { h, replace } from "../dom.js";
import { actionsTitle, button, choice, table, tag } from "../parts.js";
import { may, state } from "../state.js";
import { listTable } from "../table.js";

const APPLIES = {
  all: "queues, streams and exchanges", queues: "queues and streams", classic_queues: "classic queues", quorum_queues: "quorum queues", streams: "streams", exchanges: "exchanges",
};

// A page of policies of one kind.
//
//   things  what they are called in paths
//   needs   the tag of who may change them
//   hint    an example of a definition
function policies({ things, title, needs, lead, hint }) {
  const path = (vhost, name) => at`vhosts/${vhost}/` + things + at`/${name}`;

  function edit(policy, changed) {
    const isNew = policy === null;
    const known = policy ?? { vhost: state.vhost || "/", name: "", pattern: "", apply_to: "queues", priority: 0, definition: {} };
    const name = h("input", { name: "name", value: known.name, required: true, maxlength: "255", autocomplete: "off", disabled: !isNew, "data-first": isNew });
    const vhost = choice("vhost", state.vhosts, known.vhost);
    vhost.disabled = !isNew;
    dialog(isNew ? `New ${title.one}` : `${title.one} ${known.name}`, [
      field("Virtual host", vhost), field("Name", name),
      field("Pattern", h("input", { name: "pattern", value: known.pattern, maxlength: "4096", autocomplete: "off", spellcheck: "false" }), "A regular expression for names, such as ^orders[.]"),
      field("Applies to", choice("apply_to", Object.keys(APPLIES), known.apply_to, APPLIES)),
      field("Priority", h("input", { name: "priority", type: "number", value: String(known.priority), required: true }), "Where several match, the highest is in force"),
      field("Definition", h("textarea", { name: "definition", rows: "5", spellcheck: "false", value: isNew ? "" : JSON.stringify(known.definition, null, 2) }), hint),
    ], {
      action: isNew ? "Create" : "Save",
      work: async (data) => {
        const place = isNew ? { vhost: data.get("vhost"), name: data.get("name") } : known;
        if (isNew && await isThere(place)) throw new InputError("There is one of this name: change that.");
        await put(path(place.vhost, place.name), { pattern: data.get("pattern"), apply_to: data.get("apply_to"), priority: Number(data.get("priority")),
          definition: parsed(data.get("definition"), "Definition") });
        notify(`“${place.name}” is in force.`);
        changed().catch(fail);
      },
    });
  }

  async function isThere({ vhost, name }) {
    const found = await get(at`vhosts/${vhost}/` + things, { name, page_size: 500 });
    return found.items.some((each) => each.name === name);
  }

  const remove = (policy, changed) => confirm(`Delete the ${title.one}?`, `“${policy.name}” is no longer in force in ${policy.vhost}.`, "Delete", async () => {
    await del(path(policy.vhost, policy.name));
    notify(`“${policy.name}” is deleted.`);
    changed().catch(fail);
  });

  return {
    path: things,
    title: title.many,
    group: "Rules",
    show(view) {
      const found = listTable(view, {
        path: inVhost(view.vhost, things),
        caption: title.many,
        columns: [
          { title: "Name", sort: "name", cell: (each) => [each.name, " ", each.suspended && tag("suspended", "bad")] },
          !view.vhost && { title: "Virtual host", sort: "vhost", cell: (each) => each.vhost },
          { title: "Pattern", cell: (each) => h("code", {}, each.pattern) },
          { title: "Applies to", sort: "apply_to", cell: (each) => APPLIES[each.apply_to] },
          { title: "Priority", sort: "priority", isNumber: true, cell: (each) => String(each.priority) },
          { title: "Definition", cell: (each) => table(each.definition) },
          may(needs) && { title: actionsTitle(), cell: (each) => h("div", { class: "does" },
            button("Change", () => edit(each, found.load)), button("Delete", () => remove(each, found.load), "danger")) },
        ].filter(Boolean),
        actions: may(needs) ? [button(`New ${title.one}`, () => edit(null, found.load))] : [],
      });
      replace(view.element, h("h1", {}, title.many), h("p", { class: "hint" }, lead), found.element);
    },
  };
}

export default [
  policies({
    things: "policies",
    title: { one: "policy", many: "Policies" },
    needs: "policymaker",
    lead: "Of those that match a name, the one of the highest priority is in force.",
    hint: 'A JSON object, such as {"message-ttl": 60000, "max-length": 1000}',
  }),
  policies({
    things: "operator-policies",
    title: { one: "operator policy", many: "Operator policies" },
    needs: "administrator",
    lead: "They bound what other policies and the arguments of queues say.",
    hint: 'A JSON object, such as {"max-length": 100000}',
  }),
];
