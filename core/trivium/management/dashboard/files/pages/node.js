// The node: whether it is well, where it listens, its storage, what each protocol has counted.

import { all, get, readiness } from "../api.js";
import { Chart } from "../chart.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { facts, section, tag } from "../parts.js";
import { may } from "../state.js";
import { plainTable } from "../table.js";

function health(overview, reason) {
  const on = overview.alarms.filter((alarm) => alarm.is_on);
  return facts([
    ["Clients can publish", reason ? [tag("no", "bad"), reason] : tag("yes", "good")],
    ["State", tag(overview.state, overview.state === "running" ? "good" : "bad")],
    ["Alarms", on.length ? on.map((alarm) => tag(alarm.resource, "bad")) : tag("none", "good")],
    ["Version", overview.version], ["Up for", format.duration(overview.uptime_ms)]]);
}

function turns(overview) {
  const total = overview.turns.reduce((sum, each) => sum + each.count, 0);
  const text = (each, index, every) => (each.most_ms === null ? `more than ${format.duration(every[index - 1].most_ms)}` : `up to ${format.duration(each.most_ms)}`);
  return plainTable("Turns of the loop by their length", [
    { title: "Length", cell: (each) => each.text },
    { title: "Turns", isNumber: true, cell: (each) => format.count(each.count) },
    { title: "Share", isNumber: true, cell: (each) => (total ? `${((each.count / total) * 100).toFixed(2)} %` : "–") },
  ], overview.turns.map((each, index, every) => ({ ...each, text: text(each, index, every) })));
}

const protocols = (overview) => plainTable("Protocols", [
  { title: "Protocol", cell: (each) => each.name },
  { title: "Connections", isNumber: true, cell: (each) => format.count(each.connections) },
  { title: "Opened", isNumber: true, cell: (each) => format.count(each.connections_opened) },
  { title: "Received", isNumber: true, cell: (each) => format.count(each.messages_received) },
  { title: "Sent", isNumber: true, cell: (each) => format.count(each.messages_sent) },
  { title: "Redelivered", isNumber: true, cell: (each) => format.count(each.messages_redelivered) },
  { title: "Unroutable", isNumber: true, cell: (each) => format.count(each.messages_unroutable) },
  { title: "Dropped", isNumber: true, cell: (each) => format.count(each.messages_dropped) },
  { title: "Errors", isNumber: true, cell: (each) => format.count(each.protocol_errors) },
  { title: "Refused logins", isNumber: true, cell: (each) => format.count(each.authentication_failures) },
], overview.protocols);

const listeners = (items) => plainTable("Listeners", [
  { title: "Name", cell: (each) => each.name },
  { title: "Protocol", cell: (each) => each.protocol },
  { title: "Address", cell: (each) => h("code", {}, each.address) },
  { title: "TLS", cell: (each) => (each.tls ? tag("TLS", "good") : "no") },
  { title: "WebSocket", cell: (each) => (each.websocket ? "yes" : "no") },
], items);

const storageFacts = (kept) => facts([
  ["Kind", kept.kind], ["Synced", kept.fsync], ["Directory", kept.directory], ["Free", format.bytes(kept.free_bytes)],
  ["Waits for the disk", format.bytes(kept.pending_bytes)], ["Write batch", format.count(kept.write_batch)],
  ["Durable write batch", format.count(kept.durable_write_batch)], ["Times that publishers waited", format.count(kept.pauses)],
  ["Logs", format.count(kept.logs)]]);

export default {
  path: "node",
  title: "Node",
  group: "Broker",
  async show(view) {
    const options = { signal: view.signal };
    const watches = may("monitoring");
    const batches = new Chart("Bytes that wait for the disk", format.bytes, { base: 1024 });
    const [well, doors, disk, counted, lengths] = [h("div"), h("div"), h("div"), h("div"), h("div")];

    async function load() {
      const [overview, reason] = await Promise.all([get("overview", {}, options), readiness(options)]);
      replace(well, health(overview, reason));
      replace(counted, protocols(overview));
      replace(lengths, turns(overview));
      if (!watches) return;
      const [found, kept] = await Promise.all([all("listeners", {}, options), get("storage", {}, options)]);
      replace(doors, listeners(found.items));
      replace(disk, storageFacts(kept));
      batches.add(Date.now(), { bytes: kept.pending_bytes });
      batches.draw();
    }

    replace(view.element, h("h1", {}, "Node"), section("Health", well),
      watches && [section("Storage", disk, h("div", { class: "charts" }, batches.element)), section("Listeners", doors)],
      section("Protocols", counted), section("Turns of the loop", h("p", {}, "Nobody is served while one lasts."), lengths));
    await view.every(5, load);
  },
};
