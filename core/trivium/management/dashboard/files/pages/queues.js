// Queues: all of them, and one with its consumers and bindings.

import { DEFAULT, access, all, at, del, get, inVhost, put } from "../api.js";
import { Chart } from "../chart.js";
import { confirm, dialog, fail, field, notify, parsed } from "../dialogs.js";
import { h, replace, whenChanged } from "../dom.js";
import * as format from "../format.js";
import { button, facts, figure, figures, leads, named, offers, refusal, section, table, tags } from "../parts.js";
import { go, link } from "../router.js";
import { mayMake, vhostField } from "../state.js";
import { Rates, listTable, plainTable } from "../table.js";

const taken = (rates) => ["delivered", "delivered_settled", "got", "got_settled"]
  .reduce((sum, name) => (rates[name] === undefined ? sum : (sum ?? 0) + rates[name]), null);

const words = (queue) => tags(
  queue.durable ? "durable" : "transient", queue.auto_delete && "auto-delete", queue.owner && "exclusive",
  queue.protocol, queue.policy && `policy ${queue.policy}`);

function create() {
  const type = h("select", { name: "type" }, ["classic", "quorum"].map((name) => h("option", { value: name }, name)));
  dialog("New queue", [
    vhostField(),
    field("Name", h("input", { name: "name", required: true, maxlength: "255", autocomplete: "off", "data-first": true })),
    field("Type", type),
    field("Durability", h("select", { name: "durable" }, h("option", { value: "yes" }, "durable: survives a restart"), h("option", { value: "" }, "transient"))),
    field("Arguments", h("textarea", { name: "arguments", rows: "4", spellcheck: "false" }), 'A JSON object, such as {"x-max-length": 1000}'),
  ], {
    action: "Create",
    work: async (data) => {
      const given = parsed(data.get("arguments"), "Arguments");
      const body = { durable: data.get("durable") === "yes", arguments: { "x-queue-type": data.get("type"), ...given } };
      await put(at`vhosts/${data.get("vhost")}/queues/${data.get("name")}`, body);
      notify(`The queue “${data.get("name")}” is there.`);
      go("queues", data.get("vhost"), data.get("name"));
    },
  });
}

const list = {
  path: "queues",
  title: "Queues",
  group: "Messages",
  show(view) {
    const rates = new Rates();
    const rated = (queue) => {
      queue.rates ??= rates.of(`${queue.vhost} ${queue.name}`, queue.counters);
      return queue.rates;
    };
    const found = listTable(view, {
      path: inVhost(view.vhost, "queues"),
      caption: "Queues",
      columns: [
        { title: "Name", sort: "name", cell: (queue) => named(queue.name, "queues", queue.vhost, queue.name) },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (queue) => queue.vhost },
        { title: "Type", sort: "type", cell: (queue) => queue.type },
        { title: "Features", cell: words },
        { title: "Ready", sort: "ready", isNumber: true, cell: (queue) => format.count(queue.ready) },
        { title: "Unsettled", sort: "unsettled", isNumber: true, cell: (queue) => format.count(queue.unsettled) },
        { title: "Consumers", sort: "consumers", isNumber: true, cell: (queue) => format.count(queue.consumers) },
        { title: "In", isNumber: true, cell: (queue) => format.rate(rated(queue).published) },
        { title: "Out", isNumber: true, cell: (queue) => format.rate(taken(rated(queue))) },
      ].filter(Boolean),
      actions: mayMake() ? [button("New queue", create)] : [],
    });
    replace(view.element, h("h1", {}, "Queues"), found.element);
  },
};

// Why nobody touches a queue here; "" for one of everybody.
function keeper(queue) {
  if (queue.protocol) return "It belongs to a session.";
  return queue.owner === null ? "" : "It is one connection's alone.";
}

function actions(vhost, queue, allowed, publishes, changed) {
  const { name } = queue;
  const path = at`vhosts/${vhost}/queues/${name}`;
  const purge = () => confirm("Purge the queue?", `All messages of “${name}” that are ready are removed.`, "Purge", async () => {
    const { messages } = await del(`${path}/contents`);
    notify(`${format.count(messages)} messages were removed.`);
    changed().catch(fail);
  });
  const remove = () => confirm("Delete the queue?", "It goes with its messages and bindings.", "Delete", async () => {
    await del(path);
    notify(`The queue “${name}” is deleted.`);
    go("queues");
  }, name);
  const places = [leads("Messages", "messages", { kind: "queue", vhost, name }),
    publishes.write && leads("Publish", "publish", { road: "exchange", vhost, key: name })];
  const kept = keeper(queue);
  return h("div", { class: "buttons" }, places, offers([button("Purge", purge, "danger"), kept || refusal(allowed, "read", name)],
    [button("Delete", remove, "danger"), kept || refusal(allowed, "configure", name)]));
}

const one = {
  path: "queues/:vhost/:name",
  async show(view) {
    const { vhost, name } = view.names;
    const rates = new Rates();
    const backlog = new Chart("Messages", format.compact);
    const moves = new Chart("Rates", format.rate);
    const [does, numbers, about, consumers, bindings] = [h("div"), h("div"), h("div"), h("div"), h("div")];
    const options = { signal: view.signal };
    const [allowed, publishes] = await Promise.all([{ name }, { name: DEFAULT }].map((what) => access(vhost, what, options)));
    const shownActions = whenChanged(does, (queue) => actions(vhost, queue, allowed, publishes, load));

    async function load() {
      const queue = await get(at`vhosts/${vhost}/queues/${name}`, {}, options);
      const { counters } = queue;
      shownActions({ name, protocol: queue.protocol, owner: queue.owner });
      const found = rates.of("", counters);
      const now = Date.now();
      backlog.add(now, { ready: queue.ready, unsettled: queue.unsettled });
      moves.add(now, { published: found.published, "taken out": taken(found), acknowledged: found.acknowledged, redelivered: found.redelivered });
      backlog.draw();
      moves.draw();
      replace(numbers, figures(
        figure("ready", format.count(queue.ready)), figure("of them in bytes", format.bytes(queue.ready_bytes)),
        figure("unsettled", format.count(queue.unsettled)), figure("consumers", format.count(queue.consumers)),
        figure("published", format.compact(counters.published)), figure("acknowledged", format.compact(counters.acknowledged)),
        figure("redelivered", format.compact(counters.redelivered)), figure("expired", format.compact(counters.expired)),
        figure("refused", format.compact(counters.refused))));
      replace(about, facts([
        ["Virtual host", vhost], ["Type", queue.type], ["Features", words(queue)], ["Policy", queue.policy], ["Exclusive to", queue.owner],
        ["Arguments", table(queue.arguments)], ["Dead letters", table(counters.dead_lettered)], ["Dropped", table(counters.dropped)]]));
    }

    async function loadAround() {
      const [readers, sources] = await Promise.all([
        all("consumers", { vhost, queue: name }, options, 500),
        all(at`vhosts/${vhost}/bindings`, { destination: name }, options, 500)]);
      replace(consumers, plainTable("Consumers", [
        { title: "Tag", cell: (each) => each.tag || "–" },
        { title: "Connection", cell: (each) => named(each.connection, "connections", each.connection) },
        { title: "User", cell: (each) => each.user || "–" },
        { title: "Acknowledges", cell: (each) => (each.acknowledges ? "yes" : "no") },
        { title: "Active", cell: (each) => (each.active ? "yes" : "no") },
        { title: "Prefetch", isNumber: true, cell: (each) => (each.limit ? format.count(each.limit) : "any") },
      ], readers.items, "Nobody consumes it."));
      const from = sources.items.filter((each) => each.destination_kind === "queue");
      replace(bindings, plainTable("Bindings", [
        { title: "From exchange", cell: (each) => each.source || "(default exchange)" },
        { title: "Key", cell: (each) => h("code", {}, each.key) },
        { title: "Arguments", cell: (each) => table(each.arguments) },
      ], from, "Nothing leads to it."));
    }

    replace(view.element, h("p", {}, h("a", { href: link("queues") }, "All queues")),
      h("div", { class: "heading" }, h("h1", {}, "Queue ", name), does),
      numbers, h("div", { class: "charts" }, backlog.element, moves.element),
      section("What it is", about), section("Consumers", consumers), section("Bindings", bindings));
    await Promise.all([view.every(2, load), view.every(5, loadAround)]);
  },
};

export default [list, one];
