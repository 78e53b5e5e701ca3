// Connections, what moves on them, and their channels.

import { all, at, del, get, inVhost } from "../api.js";
import { Chart } from "../chart.js";
import { dialog, field, notify } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { button, facts, figure, figures, named, section, table, tag, tags } from "../parts.js";
import { go, link } from "../router.js";
import { may, state } from "../state.js";
import { Rates, listTable, plainTable } from "../table.js";

const stateTag = (connection) => tag(connection.state, connection.state === "running" ? "good" : "bad");
const sent = (counters) => counters.delivered + counters.delivered_settled;

function close(name) {
  const reason = h("input", { name: "reason", maxlength: "200", autocomplete: "off", "data-first": true });
  dialog("Close the connection?", [h("p", {}, "Most clients come again at once."), field("Reason", reason, "The client is told.")], {
    action: "Close it",
    isDanger: true,
    work: async (data) => {
      // A header has no other characters.
      const text = data.get("reason").replace(/[^\x20-\x7e]/g, "?");
      await del(at`connections/${name}`, text ? { headers: { "X-Reason": text } } : {});
      notify("The connection is closed.");
      go("connections");
    },
  });
}

// Whoever watches sees the connections of others, and ends its own.
const mayClose = (connection) => may("administrator") || connection.user === state.caller.name;

const list = {
  path: "connections",
  title: "Connections",
  group: "Clients",
  show(view) {
    const rates = new Rates();
    const rated = (connection) => {
      const { counters } = connection;
      connection.rates ??= rates.of(`${connection.name} ${connection.connected_at}`, { ...counters, sent: sent(counters) });
      return connection.rates;
    };
    const found = listTable(view, {
      path: inVhost(view.vhost, "connections"),
      caption: "Connections",
      columns: [
        { title: "Name", sort: "name", cell: (each) => named(each.name, "connections", each.name) },
        { title: "Client", cell: (each) => format.plain(each.client.client_id || each.client.connection_name || each.client.product) },
        { title: "User", sort: "user", cell: (each) => each.user || "–" },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (each) => each.vhost },
        { title: "Protocol", sort: "protocol", isShort: true, cell: (each) => [each.protocol, each.tls && [" ", tag("TLS", "good")]] },
        { title: "State", sort: "state", cell: stateTag },
        { title: "Published", isNumber: true, cell: (each) => format.rate(rated(each).published) },
        { title: "Delivered", isNumber: true, cell: (each) => format.rate(rated(each).sent) },
        { title: "Received", sort: "counters.bytes_received", isNumber: true, cell: (each) => format.byteRate(rated(each).bytes_received) },
        { title: "Sent", sort: "counters.bytes_sent", isNumber: true, cell: (each) => format.byteRate(rated(each).bytes_sent) },
      ].filter(Boolean),
      empty: "Nobody is connected.",
    });
    replace(view.element, h("h1", {}, "Connections"), found.element);
  },
};

const one = {
  path: "connections/:name",
  async show(view) {
    const { name } = view.names;
    const options = { signal: view.signal };
    const rates = new Rates();
    const messages = new Chart("Messages", format.rate);
    const traffic = new Chart("Bytes", format.byteRate, { base: 1024 });
    const [numbers, about, actions, channels, consumers] = [h("div"), h("div"), h("div", { class: "buttons" }), h("div"), h("div")];

    async function load() {
      const connection = await get(at`connections/${name}`, {}, options);
      const { counters } = connection;
      const found = rates.of("", { ...counters, sent: sent(counters) });
      const now = Date.now();
      messages.add(now, { published: found.published, delivered: found.sent, acknowledged: found.acknowledged });
      traffic.add(now, { received: found.bytes_received, sent: found.bytes_sent });
      messages.draw();
      traffic.draw();
      if (!actions.firstChild && mayClose(connection)) actions.append(button("Close", () => close(name), "danger"));
      replace(numbers, figures(
        figure("published", format.compact(counters.published)), figure("delivered", format.compact(sent(counters))),
        figure("acknowledged", format.compact(counters.acknowledged)), figure("redelivered", format.compact(counters.redelivered)),
        figure("unroutable", format.compact(counters.unroutable)), figure("received", format.bytes(counters.bytes_received)),
        figure("sent", format.bytes(counters.bytes_sent))));
      replace(about, facts([
        ["State", stateTag(connection)], ["User", connection.user], ["Virtual host", connection.vhost], ["Protocol", connection.protocol],
        ["Listener", connection.listener], ["TLS", connection.tls ? "yes" : "no"], ["Address", `${connection.address}:${connection.port}`],
        ["Since", format.time(connection.connected_at)], ["Client", table(connection.client)]]));
    }

    async function loadAround() {
      const query = { connection: name };
      const [lines, readers] = await Promise.all([all("channels", query, options), all("consumers", query, options)]);
      replace(channels, channelTable(lines.items));
      replace(consumers, plainTable("Consumers", [
        { title: "Tag", cell: (each) => each.tag || "–" },
        { title: "Queue", cell: (each) => named(each.queue, "queues", each.vhost, each.queue) },
        { title: "Acknowledges", cell: (each) => (each.acknowledges ? "yes" : "no") },
        { title: "Prefetch", isNumber: true, cell: (each) => (each.limit ? format.count(each.limit) : "any") },
      ], readers.items, "It consumes nothing."));
    }

    replace(view.element, h("p", {}, h("a", { href: link("connections") }, "All connections")),
      h("div", { class: "heading" }, h("h1", {}, "Connection ", name), actions), numbers,
      h("div", { class: "charts" }, messages.element, traffic.element), section("What it is", about),
      section("Channels", channels), section("Consumers", consumers));
    await Promise.all([view.every(2, load), view.every(5, loadAround)]);
  },
};

const CHANNEL = [
  { title: "Unsettled", sort: "unsettled", isNumber: true, cell: (each) => format.count(each.unsettled) },
  { title: "Unconfirmed", sort: "unconfirmed", isNumber: true, cell: (each) => format.count(each.unconfirmed) },
  { title: "Consumers", sort: "consumers", isNumber: true, cell: (each) => format.count(each.consumers) },
  { title: "Prefetch", isNumber: true, cell: (each) => `${each.consumer_limit || "any"} / ${each.limit || "any"}` },
  { title: "Mode", cell: (each) => tags(each.confirms && "confirms", each.transactional && "transactions") },
];
const number = { title: "Channel", sort: "number", cell: (each) => String(each.number) };

const channelTable = (rows) => plainTable("Channels", [number, ...CHANNEL], rows, "Its protocol has none.");

const channels = {
  path: "channels",
  title: "Channels",
  group: "Clients",
  show(view) {
    const found = listTable(view, {
      path: "channels",
      caption: "Channels",
      query: { vhost: view.vhost },
      columns: [
        { title: "Connection", sort: "connection", cell: (each) => named(each.connection, "connections", each.connection) },
        { ...number, isNumber: true },
        { title: "User", sort: "user", cell: (each) => each.user || "–" },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (each) => each.vhost },
        ...CHANNEL,
      ].filter(Boolean),
      empty: "There are no channels. AMQP alone has them.",
    });
    replace(view.element, h("h1", {}, "Channels"), found.element);
  },
};

export default [list, one, channels];
