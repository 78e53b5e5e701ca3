// Exchanges: all of them, one with its bindings, and a drawing of what leads where.

import { DEFAULT, access, all, at, del, get, inVhost, post, put } from "../api.js";
import { confirm, dialog, fail, field, notify, parsed } from "../dialogs.js";
import { h, replace, whenChanged } from "../dom.js";
import { MOST_EDGES, draw, graphOf } from "../drawing.js";
import * as format from "../format.js";
import { actionsTitle, button, choice, facts, figure, figures, leads, named, names, offers, refusal, section, table, tag } from "../parts.js";
import { go, link } from "../router.js";
import { mayMake, state, vhostField } from "../state.js";
import { Rates, listTable, plainTable } from "../table.js";

const MOST_BINDINGS = 1000;
const shown = (name) => name || "(default exchange)";
const isOwn = (name) => name === "" || name === DEFAULT || name.startsWith("amq.");

const words = (exchange) => [
  exchange.durable ? tag("durable") : tag("transient"), exchange.auto_delete && tag("auto-delete"), exchange.internal && tag("internal"),
  exchange.policy && tag(`policy ${exchange.policy}`)];

function create() {
  dialog("New exchange", [
    vhostField(),
    field("Name", h("input", { name: "name", required: true, maxlength: "255", autocomplete: "off", "data-first": true })),
    field("Type", h("input", { name: "type", value: "topic", required: true, list: "exchange-types" })),
    h("datalist", { id: "exchange-types" }, ["direct", "fanout", "headers", "topic", "x-consistent-hash"].map((value) => h("option", { value }))),
    field("Durability", choice("durable", ["yes", ""], "yes", { yes: "durable: survives a restart", "": "transient" })),
    field("Deleted", choice("auto_delete", ["", "yes"], "", { "": "only by somebody", yes: "with its last binding" })),
    field("Publishers", choice("internal", ["", "yes"], "", { "": "may publish to it", yes: "may not: it is for other exchanges" })),
    field("Arguments", h("textarea", { name: "arguments", rows: "3", spellcheck: "false" }), 'A JSON object, such as {"alternate-exchange": "unrouted"}'),
  ], {
    action: "Create",
    work: async (data) => {
      const [vhost, name] = [data.get("vhost"), data.get("name")];
      await put(at`vhosts/${vhost}/exchanges/${name}`, {
        type: data.get("type"), durable: data.get("durable") === "yes", auto_delete: data.get("auto_delete") === "yes",
        internal: data.get("internal") === "yes", arguments: parsed(data.get("arguments"), "Arguments") });
      notify(`The exchange “${name}” is there.`);
      go("exchanges", vhost, name);
    },
  });
}

const list = {
  path: "exchanges",
  title: "Exchanges",
  group: "Messages",
  show(view) {
    const rates = new Rates();
    const rated = (exchange) => {
      exchange.rates ??= rates.of(`${exchange.vhost} ${exchange.name}`, exchange.counters);
      return exchange.rates;
    };
    const found = listTable(view, {
      path: inVhost(view.vhost, "exchanges"),
      caption: "Exchanges",
      columns: [
        { title: "Name", sort: "name", cell: (each) => named(shown(each.name), "exchanges", each.vhost, each.name || DEFAULT) },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (each) => each.vhost },
        { title: "Type", sort: "type", cell: (each) => each.type },
        { title: "Features", cell: words },
        { title: "In", isNumber: true, cell: (each) => format.rate(rated(each).published) },
        { title: "Routed", isNumber: true, cell: (each) => format.rate(rated(each).routed) },
        { title: "Unroutable", sort: "counters.unroutable", isNumber: true, cell: (each) => format.count(each.counters.unroutable) },
      ].filter(Boolean),
      actions: mayMake() ? [button("New exchange", create)] : [],
    });
    replace(view.element, h("h1", {}, "Exchanges"), found.element);
  },
};

// Where a binding leads to.
const target = (vhost, each) => (each.destination_type === "exchange"
  ? named(each.destination, "exchanges", vhost, each.destination)
  : named(each.destination, `${each.destination_type}s`, vhost, each.destination));

function bindingsTable(vhost, bindings, changed) {
  const unbind = (each) => confirm("Remove the binding?", `“${shown(each.source)}” no longer leads to “${each.destination}” by “${each.key}”.`, "Remove",
    async () => {
      await post(`${at`vhosts/${vhost}/bindings`}/delete`, { source: each.source, destination: each.destination,
        destination_kind: each.destination_kind, key_base64: each.key_base64, arguments: each.arguments });
      notify("The binding is removed.");
      changed().catch(fail);
    });
  return plainTable("Bindings", [
    { title: "From exchange", cell: (each) => named(shown(each.source), "exchanges", vhost, each.source || DEFAULT) },
    { title: "Key", cell: (each) => h("code", {}, each.key) },
    { title: "To", cell: (each) => [tag(each.destination_type), " ", target(vhost, each)] },
    { title: "Arguments", cell: (each) => table(each.arguments) },
    { title: actionsTitle(), cell: (each) => each.is_removable && button("Remove", () => unbind(each), "danger") },
  ], bindings, "Nothing is bound.");
}

// The drawing and what it leaves out.
function picture(vhost, bindings, isWhole, around) {
  const graph = graphOf(bindings, around);
  if (!graph.edges.length) return h("p", { class: "empty" }, "Nothing is bound.");
  const isCut = !isWhole || !graph.isWhole;
  return [draw(vhost, graph), isCut && h("p", { class: "hint" },
    `There is more than can be drawn: these are ${graph.edges.length} of at most ${MOST_EDGES} ways.`)];
}

// All bindings but those of the default exchange, which leads to each queue: they come last.
async function declared(vhost, options) {
  const { items, isWhole } = await all(at`vhosts/${vhost}/bindings`, { sort: "source", sort_reverse: "true" }, options, MOST_BINDINGS);
  const found = items.filter((each) => each.source !== "");
  return { items: found, isWhole: isWhole || found.length < items.length };
}

function bind(vhost, source, changed) {
  const kind = choice("kind", ["queue", "exchange"], "queue", { queue: "queue or stream" });
  const destination = h("input", { name: "destination", required: true, maxlength: "255", "data-first": true });
  dialog(`Bind something to “${source}”`, [
    field("To", kind), field("Name", destination), names(destination, () => `${at`vhosts/${vhost}`}/${kind.value}s`),
    field("Key", h("input", { name: "key", maxlength: "255", autocomplete: "off", spellcheck: "false" }), "* is one word, # any number of words, of a topic exchange"),
    field("Arguments", h("textarea", { name: "arguments", rows: "3", spellcheck: "false" }), 'A JSON object, such as {"x-match": "all"}'),
  ], {
    action: "Bind",
    work: async (data) => {
      await post(at`vhosts/${vhost}/bindings`, { source, destination: data.get("destination"), destination_kind: data.get("kind"),
        key: data.get("key"), arguments: parsed(data.get("arguments"), "Arguments") });
      notify("It is bound.");
      changed().catch(fail);
    },
  });
}

// Topics at this one are permitted one by one.
const TOPICS = "amq.topic";
const readRefusal = (allowed, name) => (name === TOPICS ? "" : refusal(allowed, "read", name));

function actions(vhost, exchange, allowed, changed) {
  const { name } = exchange;
  const remove = () => confirm("Delete the exchange?", "It goes with its bindings.", "Delete", async () => {
    await del(at`vhosts/${vhost}/exchanges/${name}`);
    notify(`The exchange “${name}” is deleted.`);
    go("exchanges");
  }, name);
  return h("div", { class: "buttons" },
    !exchange.internal && (allowed.write || name === TOPICS) && leads("Publish", "publish", { road: "exchange", vhost, exchange: name }),
    name !== "" && offers([button("Bind", () => bind(vhost, name, changed)), readRefusal(allowed, name)],
      ...(isOwn(name) ? [] : [[button("Delete", remove, "danger"), refusal(allowed, "configure", name)]])));
}

const one = {
  path: "exchanges/:vhost/:name",
  async show(view) {
    const { vhost, name } = view.names;
    const own = name === DEFAULT ? "" : name;
    const rates = new Rates();
    const options = { signal: view.signal };
    const allowed = await access(vhost, { name }, options);
    const [does, numbers, about, drawing, bindings] = [h("div"), h("div"), h("div"), h("div"), h("div")];
    const shownPicture = whenChanged(drawing, (found, isWhole) => picture(vhost, found, isWhole, own));
    const shownBindings = whenChanged(bindings, (found) => bindingsTable(vhost, found, loadBindings));
    const shownActions = whenChanged(does, (exchange) => actions(vhost, exchange, allowed, loadBindings));

    async function load() {
      const exchange = await get(at`vhosts/${vhost}/exchanges/${name}`, {}, options);
      const { counters } = exchange;
      const found = rates.of("", counters);
      shownActions({ name: exchange.name, internal: exchange.internal });
      replace(numbers, figures(figure("published", format.rate(found.published)), figure("routed", format.rate(found.routed)),
        figure("published since the start", format.compact(counters.published)), figure("routed since the start", format.compact(counters.routed)),
        figure("unroutable since the start", format.compact(counters.unroutable))));
      replace(about, facts([["Virtual host", vhost], ["Type", exchange.type], ["Features", words(exchange)], ["Policy", exchange.policy],
        ["Arguments", table(exchange.arguments)]]));
    }

    async function loadBindings() {
      const { items: others, isWhole } = own === ""
        ? await all(at`vhosts/${vhost}/bindings`, { source: DEFAULT }, options, MOST_BINDINGS) : await declared(vhost, options);
      shownPicture(others, isWhole);
      shownBindings(others.filter((each) => each.source === own || (each.destination_type === "exchange" && each.destination === own)).slice(0, 500));
    }

    replace(view.element, h("p", {}, h("a", { href: link("exchanges") }, "All exchanges")),
      h("div", { class: "heading" }, h("h1", {}, "Exchange ", shown(own)), does), numbers,
      section("What it is", about), section("Where it leads", drawing), section("Bindings", bindings));
    await Promise.all([view.every(2, load), view.every(5, loadBindings)]);
  },
};

const map = {
  path: "bindings",
  title: "Bindings",
  group: "Messages",
  async show(view) {
    const vhost = view.vhost || (state.vhosts.includes("/") ? "/" : state.vhosts[0]);
    const [drawing, bindings] = [h("div"), h("div")];
    if (vhost === undefined) {
      replace(view.element, h("h1", {}, "Bindings"), h("p", { class: "empty" }, "There is no virtual host for you."));
      return;
    }
    const shownPicture = whenChanged(drawing, (found, isWhole) => picture(vhost, found, isWhole));
    const shownTable = whenChanged(bindings, (found) => bindingsTable(vhost, found, load));

    async function load() {
      const { items: found, isWhole } = await declared(vhost, { signal: view.signal });
      shownPicture(found, isWhole);
      shownTable(found.slice(0, 500));
    }

    replace(view.element, h("h1", {}, "Bindings in ", vhost), h("p", { class: "hint" }, "The default exchange, which leads to each queue by its name, is left out."),
      drawing, section("As a table", bindings));
    await view.every(5, load);
  },
};

export default [list, one, map];
