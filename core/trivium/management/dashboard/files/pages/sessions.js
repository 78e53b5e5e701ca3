// Sessions of MQTT clients: what is kept of each, whether it is connected or not.

import { all, at, del, get, inVhost } from "../api.js";
import { confirm, notify } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { button, facts, figure, figures, named, section, tag } from "../parts.js";
import { go, link } from "../router.js";
import { may, state } from "../state.js";
import { listTable, plainTable } from "../table.js";

const MOST_SUBSCRIPTIONS = 500;
// Expiry of a session that does not end by itself (MQTT5 3.1.2.11.2).
const NEVER = 0xffffffff;

const expiry = (session) => {
  if (session.expiry_seconds >= NEVER) return "never";
  return session.expiry_seconds ? `${format.duration(session.expiry_seconds * 1000)} after it has left` : "when it leaves";
};
const connected = (session) => (session.is_connected ? tag("connected", "good") : tag("away"));

const list = {
  path: "sessions",
  title: "Sessions",
  group: "MQTT",
  show(view) {
    const found = listTable(view, {
      path: inVhost(view.vhost, "sessions"),
      caption: "Sessions",
      search: false,
      columns: [
        { title: "Client", sort: "client_id", cell: (each) => named(each.client_id, "sessions", each.vhost, each.client_id) },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (each) => each.vhost },
        { title: "User", sort: "user", cell: (each) => each.user || "–" },
        { title: "State", sort: "is_connected", cell: connected },
        { title: "Ends", sort: "expiry_seconds", cell: expiry },
        { title: "Subscriptions", sort: "subscriptions", isNumber: true, cell: (each) => format.count(each.subscriptions) },
        { title: "Queue", cell: (each) => (each.queue ? named(each.queue, "queues", each.vhost, each.queue) : "–") },
      ].filter(Boolean),
    });
    replace(view.element, h("h1", {}, "Sessions"), found.element);
  },
};

function end(vhost, client) {
  confirm("End the session?", "Its subscriptions and the messages that wait for it are gone, and its connection is closed.", "End it", async () => {
    await del(at`vhosts/${vhost}/sessions/${client}`);
    notify(`The session of “${client}” is ended.`);
    go("sessions");
  }, client);
}

const one = {
  path: "sessions/:vhost/:client",
  async show(view) {
    const { vhost, client } = view.names;
    const [does, numbers, about, subscriptions] = [h("div", { class: "buttons" }), h("div"), h("div"), h("div")];
    const options = { signal: view.signal };

    async function load() {
      const session = await get(at`vhosts/${vhost}/sessions/${client}`, {}, options);
      const queue = session.queue && await queueOf(vhost, session.queue, options);
      if (!does.firstChild && (may("administrator") || session.user === state.caller.name)) {
        replace(does, button("End", () => end(vhost, client), "danger"));
      }
      replace(numbers, figures(figure("subscriptions", format.count(session.subscriptions)),
        figure("messages that wait", format.count(queue ? queue.ready : 0)), figure("of them in bytes", format.bytes(queue ? queue.ready_bytes : 0)),
        figure("in flight", format.count(queue ? queue.unsettled : 0)), queue && figure("acknowledged", format.compact(queue.counters.acknowledged)),
        queue && figure("expired", format.compact(queue.counters.expired))));
      replace(about, facts([["Virtual host", vhost], ["User", session.user || "nobody"], ["State", connected(session)], ["Ends", expiry(session)],
        ["Queue", session.queue ? named(session.queue, "queues", vhost, session.queue) : "–"]]));
    }

    async function loadSubscriptions() {
      const { items, isWhole } = await all(at`vhosts/${vhost}/sessions/${client}/subscriptions`, {}, options, MOST_SUBSCRIPTIONS);
      replace(subscriptions, plainTable("Subscriptions", [
        { title: "Topic filter", cell: (each) => h("code", {}, each.filter) },
        { title: "QoS", isNumber: true, cell: (each) => String(each.qos) },
        { title: "Shared as", cell: (each) => each.share ?? "–" },
      ], items, "It has subscribed to nothing."), !isWhole && h("p", { class: "hint" }, "There are more."));
    }

    replace(view.element, h("p", {}, h("a", { href: link("sessions") }, "All sessions")),
      h("div", { class: "heading" }, h("h1", {}, "Session of ", client), does), numbers,
      section("What it is", about), section("Subscriptions", subscriptions));
    await Promise.all([view.every(2, load), view.every(5, loadSubscriptions)]);
  },
};

// Its queue; null where it is gone meanwhile.
async function queueOf(vhost, name, options) {
  try {
    return await get(at`vhosts/${vhost}/queues/${name}`, {}, options);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

export default [list, one];
