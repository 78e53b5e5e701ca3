// Streams: all of them, and one with its partitions and how far each group is in them.

import { DEFAULT, access, all, at, del, get, inVhost, put } from "../api.js";
import { Chart } from "../chart.js";
import { confirm, dialog, field, notify, parsed } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { button, facts, figure, figures, leads, named, offers, refusal, section, table, tag } from "../parts.js";
import { go, link } from "../router.js";
import { mayMake, vhostField } from "../state.js";
import { Rates, listTable, plainTable } from "../table.js";

// Partitions that are columns of a table; more are rows.
const MOST_COLUMNS = 16;
const limit = (value, text) => (value < 0 ? "none" : text(value));

function create() {
  dialog("New stream", [
    vhostField(),
    field("Name", h("input", { name: "name", required: true, maxlength: "255", autocomplete: "off", "data-first": true })),
    field("Partitions", h("input", { name: "partitions", type: "number", min: "1", max: "1024", value: "1", required: true })),
    field("Arguments", h("textarea", { name: "arguments", rows: "4", spellcheck: "false" }), 'A JSON object, such as {"x-max-age": "7D"}'),
  ], {
    action: "Create",
    work: async (data) => {
      const body = { partitions: Number(data.get("partitions")), arguments: parsed(data.get("arguments"), "Arguments") };
      await put(at`vhosts/${data.get("vhost")}/streams/${data.get("name")}`, body);
      notify(`The stream “${data.get("name")}” is there.`);
      go("streams", data.get("vhost"), data.get("name"));
    },
  });
}

const list = {
  path: "streams",
  title: "Streams",
  group: "Messages",
  show(view) {
    const rates = new Rates();
    const found = listTable(view, {
      path: inVhost(view.vhost, "streams"),
      caption: "Streams",
      columns: [
        { title: "Name", sort: "name", cell: (stream) => named(stream.name, "streams", stream.vhost, stream.name) },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (stream) => stream.vhost },
        { title: "Policy", sort: "policy", cell: (stream) => (stream.policy ? tag(stream.policy) : "–") },
        { title: "Partitions", sort: "partitions", isNumber: true, cell: (stream) => format.count(stream.partitions) },
        { title: "Records", sort: "records", isNumber: true, cell: (stream) => format.count(stream.records) },
        { title: "In", isNumber: true, cell: ({ vhost, name, published }) => format.rate(rates.of(`${vhost} ${name}`, { published }).published) },
      ].filter(Boolean),
      actions: mayMake() ? [button("New stream", create)] : [],
    });
    replace(view.element, h("h1", {}, "Streams"), found.element);
  },
};

// One row per group, one column per partition.
function lagTable(vhost, lags) {
  const groups = new Map();
  for (const lag of lags) {
    if (!groups.has(lag.group)) groups.set(lag.group, []);
    groups.get(lag.group).push(lag);
  }
  const rows = [...groups].sort(([one], [other]) => (one < other ? -1 : 1));
  const total = (own) => own.reduce((sum, lag) => sum + lag.lag, 0);
  const empty = "No group has committed an offset or reads it.";
  const group = { title: "Group", cell: ([name]) => named(name, "groups", vhost, name) };
  const partitions = Math.max(0, ...rows.map(([, own]) => own.length));
  if (partitions <= MOST_COLUMNS) {
    const columns = Array.from({ length: partitions }, (_, index) => ({
      title: `Partition ${index}`, isNumber: true, cell: ([, own]) => format.count(own.find((lag) => lag.partition === index)?.lag),
    }));
    return plainTable("Lag by group and partition", [group, { title: "Lag", isNumber: true, cell: ([, own]) => h("b", {}, format.count(total(own))) }, ...columns], rows, empty);
  }
  const behind = rows.flatMap(([name, own]) => own.map((lag) => [name, [lag]]));
  return plainTable("Lag by group and partition", [group,
    { title: "Partition", isNumber: true, cell: ([, [lag]]) => lag.partition },
    { title: "Lag", isNumber: true, cell: ([, [lag]]) => format.count(lag.lag) }], behind, empty);
}

const one = {
  path: "streams/:vhost/:name",
  async show(view) {
    const { vhost, name } = view.names;
    const path = at`vhosts/${vhost}/streams/${name}`;
    const options = { signal: view.signal };
    const [allowed, publishes] = await Promise.all([{ name }, { name: DEFAULT }].map((what) => access(vhost, what, options)));
    const rates = new Rates();
    const moves = new Chart("Records", format.rate);
    const behind = new Chart("Lag by group", format.compact);
    const [numbers, about, partitions, lags] = [h("div"), h("div"), h("div"), h("div")];

    async function load() {
      const [stream, parts] = await Promise.all([get(path, {}, options), all(`${path}/partitions`, {}, options, 1024)]);
      const read = parts.items.reduce((sum, part) => sum + part.read, 0);
      const found = rates.of("", { appended: stream.published, read });
      const each = new Map(parts.items.map((part) => [part, rates.of(part.partition, { appended: part.appended, read: part.read })]));
      moves.add(Date.now(), { appended: found.appended, read: found.read });
      moves.draw();
      replace(numbers, figures(
        figure("records", format.count(stream.records)), figure("partitions", format.count(stream.partitions)),
        figure("published since the start", format.compact(stream.published)), figure("read since the start", format.compact(read))));
      const kept = stream.retention;
      replace(about, facts([
        ["Virtual host", vhost], ["Policy", stream.policy], ["Kept for", limit(kept.max_age_ms, format.duration)],
        ["Records of a partition", limit(kept.max_records, format.count)], ["Bytes of a partition", limit(kept.max_bytes, format.bytes)],
        ["Compaction", kept.compacts ? "on" : "off"], ["Compression", kept.compression], ["Arguments", table(stream.arguments)]]));
      replace(partitions, plainTable("Partitions", [
        { title: "Partition", cell: (part) => String(part.partition) },
        { title: "First offset", isNumber: true, cell: (part) => format.count(part.first_offset) },
        { title: "High watermark", isNumber: true, cell: (part) => format.count(part.high_watermark) },
        { title: "Records", isNumber: true, cell: (part) => format.count(part.records) },
        { title: "In", isNumber: true, cell: (part) => format.rate(each.get(part).appended) },
        { title: "Read", isNumber: true, cell: (part) => format.rate(each.get(part).read) },
      ], parts.items));
    }

    async function loadLags() {
      const found = await all(`${path}/groups`, {}, options);
      const sums = {};
      for (const lag of found.items) sums[lag.group] = (sums[lag.group] ?? 0) + lag.lag;
      behind.add(Date.now(), Object.fromEntries(Object.entries(sums).sort(([, one], [, other]) => other - one).slice(0, 8)));
      behind.draw();
      replace(lags, !found.isWhole && h("p", {}, "There are more groups than are shown."), lagTable(vhost, found.items));
    }

    const remove = () => confirm("Delete the stream?", "It goes with its records and the offsets of its groups.", "Delete", async () => {
      await del(path);
      notify(`The stream “${name}” is deleted.`);
      go("streams");
    }, name);
    replace(view.element, h("p", {}, h("a", { href: link("streams") }, "All streams")),
      h("div", { class: "heading" }, h("h1", {}, "Stream ", name), h("div", { class: "buttons" }, leads("Messages", "messages", { kind: "stream", vhost, name }),
        publishes.write && leads("Publish", "publish", { road: "stream", vhost, stream: name }), offers([button("Delete", remove, "danger"), refusal(allowed, "configure", name)]))),
      numbers, h("div", { class: "charts" }, moves.element, behind.element),
      section("Lag by group and partition", lags), section("Partitions", partitions), section("What it is", about));
    await Promise.all([view.every(2, load), view.every(2, loadLags)]);
  },
};

export default [list, one];
