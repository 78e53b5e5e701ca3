// What there is and what moves, as charts of the last minutes.

import { Chart, gauge } from "../chart.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { history } from "../live.js";
import { figure, figures } from "../parts.js";
import { link } from "../router.js";

const MIB = 1024 * 1024;

// Milliseconds of the longest turn between two figures, by the histogram: at most so long.
export function longestTurn(before, now) {
  if (!before) return null;
  const earlier = new Map(before.turns.map((each) => [each.most_ms, each.count]));
  const found = now.turns.filter((each) => each.count > (earlier.get(each.most_ms) ?? 0)).at(-1);
  if (!found) return 0;
  // What took longer than the last bound is shown as that.
  return found.most_ms ?? now.turns.at(-2).most_ms;
}

function charts() {
  const found = {
    received: new Chart("Messages received, by protocol", format.rate),
    sent: new Chart("Messages sent, by protocol", format.rate),
    backlog: new Chart("Backlog in queues", format.compact),
    traffic: new Chart("Bytes, all protocols", format.byteRate, { base: 1024 }),
    memory: new Chart("Memory of the process", format.bytes, { base: 1024 }),
    turns: new Chart("Longest turn, at most", format.duration),
  };
  let before = null;
  found.add = (each) => {
    const { at, overview, rates } = each;
    const by = (name) => Object.fromEntries(rates.map((rate) => [rate.protocol, rate[name]]));
    const sum = (name) => (rates.length ? rates.reduce((total, rate) => total + rate[name], 0) : null);
    found.received.add(at, by("messages_received"));
    found.sent.add(at, by("messages_sent"));
    found.backlog.add(at, { ready: overview.messages_ready, unsettled: overview.messages_unsettled, delayed: overview.messages_delayed });
    found.traffic.add(at, { received: sum("bytes_received"), sent: sum("bytes_sent") });
    const memory = overview.alarms.find((alarm) => alarm.resource === "memory");
    found.memory.add(at, { memory: memory.current_bytes < 0 ? null : memory.current_bytes });
    found.turns.add(at, { turn: longestTurn(before, overview) });
    before = overview;
  };
  found.all = [found.received, found.sent, found.backlog, found.traffic, found.memory, found.turns];
  return found;
}

function resources(alarms) {
  return alarms.map((alarm) => {
    const isMemory = alarm.resource === "memory";
    const word = isMemory ? "used" : "free";
    const limit = alarm.limit_bytes ? `, ${isMemory ? "alarm above" : "alarm below"} ${format.bytes(alarm.limit_bytes)}` : "";
    // Memory fills up to its limit; of the disk so much is left above it.
    const share = isMemory ? [alarm.current_bytes, alarm.limit_bytes] : [alarm.limit_bytes, Math.max(alarm.current_bytes, MIB)];
    return gauge(isMemory ? "Memory" : "Disk", ...share, `${format.bytes(alarm.current_bytes)} ${word}${limit}${alarm.is_on ? " – alarm" : ""}`, alarm.is_on);
  });
}

export default {
  path: "overview",
  title: "Overview",
  group: "Broker",
  show(view) {
    const [since, top] = [h("span", { class: "total" }), h("div")];
    const state = h("div", { class: "gauges" });
    const drawn = charts();
    replace(view.element, h("div", { class: "heading" }, h("h1", {}, "Overview"), since), top, state, h("div", { class: "charts" }, drawn.all.map((chart) => chart.element)));
    history.slice(0, -1).forEach(drawn.add);
    drawn.all.forEach((chart) => chart.draw());
    view.live((each) => {
      if (!each) return;
      drawn.add(each);
      drawn.all.forEach((chart) => chart.draw());
      const { overview } = each;
      replace(top, figures(
        figure("connections", format.count(overview.connections), link("connections")),
        figure("consumers", format.count(overview.consumers)),
        figure("queues", format.count(overview.queues), link("queues")),
        figure("streams", format.count(overview.streams), link("streams")),
        figure("exchanges", format.count(overview.exchanges), link("exchanges")),
        figure("groups", format.count(overview.groups), link("groups")),
        figure("retained", format.count(overview.retained_messages), link("retained")),
        figure("virtual hosts", format.count(overview.vhosts), link("vhosts"))));
      replace(since, `up for ${format.duration(overview.uptime_ms)}`);
      replace(state, resources(overview.alarms));
    });
  },
};
