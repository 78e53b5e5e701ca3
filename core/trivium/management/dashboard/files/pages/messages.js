// The messages of a queue, which stay where they are, or of a partition of a stream.

import { at, get } from "../api.js";
import { fail, field } from "../dialogs.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { messageList } from "../payload.js";
import { button, choice, names, tag } from "../parts.js";
import { go, keep, link } from "../router.js";
import { state } from "../state.js";

const LIMIT = 20;

// One line of a message.
function line(number, message) {
  const text = message.payload ?? "";
  const start = text.replace(/\s+/g, " ").slice(0, 80);
  return [h("b", {}, `#${number}`), " ", h("code", {}, message.key || "(no key)"), " ",
    h("span", { class: "start" }, message.payload === null ? "bytes" : start), message.redelivered && tag("redelivered")];
}

const common = (message) => [
  ["Exchange", message.exchange || "(default exchange)"], ["Routing key", message.key], ["Published", format.time(message.published_at)]];

// What is asked of each kind: part(place, first) -> { messages, first, next, notes }.
const kinds = {
  queue: async (chosen, first, options) => {
    const found = await get(at`vhosts/${chosen.vhost}/queues/${chosen.name}/messages`,
      { first, limit: LIMIT, priority: chosen.priority }, options);
    return {
      list: messageList(found.messages, (each) => line(each.number, each), (each) => [...common(each),
        ["Mode", each.mode], ["Priority", format.count(each.priority)], ["Expires", each.expires_at ? format.time(each.expires_at) : "never"]]),
      count: found.messages.length,
      next: found.next,
      note: found.priorities > 1 ? `Priority ${found.priority} of 0 to ${found.priorities - 1}` : "",
    };
  },
  stream: async (chosen, first, options) => {
    const path = at`vhosts/${chosen.vhost}/streams/${chosen.name}/partitions/${chosen.partition || "0"}/records`;
    const found = await get(path, { offset: first, limit: LIMIT }, options);
    const records = found.records;
    return {
      list: messageList(records, (each) => line(each.offset, each), common),
      count: records.length,
      first: records[0]?.offset,
      next: found.next_offset < found.high_watermark ? found.next_offset : null,
      end: found.high_watermark,
      note: `The partition ends at ${format.count(found.high_watermark)}`,
    };
  },
};

function form(chosen) {
  const kind = choice("kind", ["queue", "stream"], chosen.kind);
  const vhost = choice("vhost", state.vhosts, chosen.vhost);
  const name = h("input", { name: "name", value: chosen.name, required: true, maxlength: "255", spellcheck: "false" });
  const partition = h("input", { name: "partition", type: "number", min: "0", value: chosen.partition });
  const priority = h("input", { name: "priority", type: "number", min: "0", max: "255", value: chosen.priority });
  const first = h("input", { name: "first", type: "number", min: "0", value: chosen.first });
  const ofStream = field("Partition", partition);
  const ofQueue = field("Priority", priority, "Of a queue with priorities; the highest");
  const show = () => {
    ofStream.hidden = kind.value !== "stream";
    ofQueue.hidden = kind.value !== "queue";
  };
  kind.addEventListener("change", show);
  show();
  const send = (event) => {
    event.preventDefault();
    const isStream = kind.value === "stream";
    go("messages", { kind: kind.value, vhost: vhost.value, name: name.value, first: first.value,
      partition: isStream ? partition.value : "", priority: isStream ? "" : priority.value });
  };
  const known = names(name, () => at`vhosts/${vhost.value}` + `/${kind.value}s`);
  return h("form", { class: "card row", onsubmit: send }, field("Kind", kind), field("Virtual host", vhost), field("Name", name), known,
    ofStream, ofQueue, field("From number", first), h("button", { type: "submit", class: "main" }, "Show"));
}

export default {
  path: "messages",
  title: "Message browser",
  group: "Messages",
  async show(view) {
    const chosen = { kind: "queue", vhost: view.vhost || state.vhosts[0] || "/", name: "", first: "", partition: "", priority: "", ...view.query };
    if (!kinds[chosen.kind]) chosen.kind = "queue";
    const place = h("div", { "aria-live": "polite" });
    replace(view.element, h("h1", {}, "Message browser"),
      h("p", { class: "hint" }, "Messages are shown and stay as they are: none is taken, or marked as delivered."), form(chosen), place);
    if (!chosen.name) return;
    const before = [];

    async function turn(first) {
      // At once: who goes to another page meanwhile is not brought back.
      keep({ ...chosen, first });
      let found;
      try {
        found = await kinds[chosen.kind](chosen, first, { signal: view.signal });
      } catch (error) {
        if (error.name !== "Problem" || error.status === 401) throw error;
        replace(place, h("p", { class: "trouble", role: "alert" }, error.message));
        return;
      }
      const start = found.first ?? first;
      const isStream = chosen.kind === "stream";
      const forward = () => {
        before.push(start);
        return turn(found.next);
      };
      const back = () => turn(before.length ? before.pop() : Math.max(0, Number(start) - LIMIT));
      // More has come since the page was shown.
      const newest = async () => {
        const now = await kinds.stream(chosen, "next", { signal: view.signal });
        await turn(Math.max(0, now.end - LIMIT));
      };
      const steps = [button("First", () => turn(isStream ? "first" : 0)), button("Back", back), button("Next", forward),
        isStream && button("Newest", () => newest().catch(fail)), button("Again", () => turn(start))];
      steps[1].disabled = !before.length && Number(start) <= 0;
      steps[2].disabled = found.next === null;
      replace(place, h("div", { class: "heading" }, h("h2", {}, h("a", { href: link(`${chosen.kind}s`, chosen.vhost, chosen.name) }, chosen.name)),
        h("div", { class: "buttons" }, steps)), found.note && h("p", { class: "total" }, found.note),
      found.count ? found.list : h("p", { class: "empty" }, "There are none here."));
    }

    await turn(chosen.first || (chosen.kind === "stream" ? "first" : 0));
  },
};
