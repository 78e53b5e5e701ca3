// Consumer groups: who reads streams, and how far.

import { access, all, at, del, get, inVhost, put } from "../api.js";
import { InputError, confirm, dialog, fail, field, notify } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { button, facts, figure, figures, named, offers, refusal, section } from "../parts.js";
import { go, link } from "../router.js";
import { listTable, plainTable } from "../table.js";

const list = {
  path: "groups",
  title: "Groups",
  group: "Messages",
  show(view) {
    const found = listTable(view, {
      path: inVhost(view.vhost, "groups"),
      caption: "Consumer groups",
      columns: [
        { title: "Name", sort: "name", cell: (group) => named(group.name, "groups", group.vhost, group.name) },
        !view.vhost && { title: "Virtual host", sort: "vhost", cell: (group) => group.vhost },
        { title: "Streams", cell: (group) => group.streams.join(", ") },
        { title: "Members", sort: "members", isNumber: true, cell: (group) => format.count(group.members) },
        { title: "Lag", sort: "lag", isNumber: true, cell: (group) => format.count(group.lag) },
      ].filter(Boolean),
      empty: "No group has committed an offset or reads a stream.",
    });
    replace(view.element, h("h1", {}, "Groups"), found.element);
  },
};

// Where a group is to go on in all partitions of a stream.
async function positions(vhost, stream, where, offset) {
  const { items } = await all(at`vhosts/${vhost}/streams/${stream}/partitions`, {}, {}, 1024);
  return items.map((part) => ({
    stream,
    partition: part.partition,
    offset: where === "first" ? part.first_offset : where === "next" ? part.high_watermark : Math.min(Math.max(offset, part.first_offset), part.high_watermark),
  }));
}

function reset(vhost, name, streams, changed) {
  const where = h("select", { name: "where" }, h("option", { value: "first" }, "the oldest record that is kept"),
    h("option", { value: "next" }, "the next record that comes"), h("option", { value: "offset" }, "this offset"));
  dialog("Reset the group's offsets", [
    h("p", {}, "All partitions of a stream are set. The group must have no members."),
    field("Stream", h("select", { name: "stream" }, streams.map((stream) => h("option", { value: stream }, stream)))),
    field("Go on at", where),
    field("Offset", h("input", { name: "offset", type: "number", min: "0", value: "0" }), "Where it is chosen above; within what a partition has."),
  ], {
    action: "Reset",
    isDanger: true,
    work: async (data) => {
      if (!data.get("stream")) throw new InputError("It has to do with no stream.");
      const found = await positions(vhost, data.get("stream"), data.get("where"), Number(data.get("offset")));
      await put(at`vhosts/${vhost}/groups/${name}/offsets`, { positions: found });
      notify("The offsets are set.");
      changed().catch(fail);
    },
  });
}

const byStream = (one, other) => (one.stream === other.stream ? one.partition - other.partition : one.stream < other.stream ? -1 : 1);

const one = {
  path: "groups/:vhost/:name",
  async show(view) {
    const { vhost, name } = view.names;
    const path = at`vhosts/${vhost}/groups/${name}`;
    const options = { signal: view.signal };
    const allowed = await access(vhost, { name }, options);
    const [numbers, about, members, offsets] = [h("div"), h("div"), h("div"), h("div")];
    let streams = [];

    async function load() {
      const [group, people, places] = await Promise.all([
        get(path, {}, options), all(`${path}/members`, {}, options), all(`${path}/offsets`, {}, options)]);
      streams = group.streams;
      replace(numbers, figures(figure("lag", format.count(group.lag)), figure("members", format.count(group.members)),
        figure("generation", format.count(group.generation))));
      replace(about, facts([["Virtual host", vhost], ["Strategy", group.strategy], ["Held by", group.holder]]));
      replace(members, plainTable("Members", [
        { title: "Name", cell: (member) => member.name },
        { title: "Owns", cell: (member) => member.owned.map((owned) => `${owned.stream}/${owned.partition}`).join(", ") || "–" },
        { title: "Session", isNumber: true, cell: (member) => format.duration(member.session_ms) },
      ], people.items, "It has no members."));
      replace(offsets, !places.isWhole && h("p", {}, "There are more than are shown."), plainTable("Offsets", [
        { title: "Stream", cell: (lag) => named(lag.stream, "streams", vhost, lag.stream) },
        { title: "Partition", isNumber: true, cell: (lag) => lag.partition },
        { title: "Committed", isNumber: true, cell: (lag) => (lag.committed < 0 ? "–" : format.count(lag.committed)) },
        { title: "High watermark", isNumber: true, cell: (lag) => format.count(lag.high_watermark) },
        { title: "Lag", isNumber: true, cell: (lag) => format.count(lag.lag) },
      ], places.items.sort(byStream)));
    }

    const remove = () => confirm("Delete the group?", "Its offsets are forgotten.", "Delete", async () => {
      await del(path);
      notify(`The group “${name}” is deleted.`);
      go("groups");
    }, name);
    replace(view.element, h("p", {}, h("a", { href: link("groups") }, "All groups")),
      h("div", { class: "heading" }, h("h1", {}, "Group ", name), h("div", { class: "buttons" },
        offers([button("Reset offsets", () => reset(vhost, name, streams, load)), refusal(allowed, "read", name)],
          [button("Delete", remove, "danger"), refusal(allowed, "configure", name)]))),
      numbers, section("How far it is", offsets), section("Members", members), section("What it is", about));
    await view.every(2, load);
  },
};

export default [list, one];
