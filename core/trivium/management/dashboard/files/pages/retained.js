// Retained messages: their topics as a tree, which is asked for level by level.

import { access, at, del, get } from "../api.js";
import { confirm, fail, field, notify } from "../dialogs.js";
import { announce, append, h, replace } from "../dom.js";
import * as format from "../format.js";
import { button, choice, leads, offers, refusal, section } from "../parts.js";
import { messageView } from "../payload.js";
import { keep, link } from "../router.js";
import { state } from "../state.js";

const LEVELS = 100;
const FOUND = 100;

const shown = (level) => (level === "" ? "(empty level)" : level);

class Tree {
  constructor(vhost, options, open) {
    this.vhost = vhost;
    this.options = options;
    this.open = open;
  }

  // The levels behind a prefix, as many as are asked for at once; more of them by a button.
  async level(prefix) {
    const list = h("ul", { class: "tree" });
    await this.#more(list, prefix);
    return list;
  }

  async #more(list, prefix, after) {
    const found = await get(at`vhosts/${this.vhost}/retained-levels`, { prefix, ...(after === undefined ? {} : { after }), limit: LEVELS }, this.options);
    append(list, found.items.map((item) => this.#item(item)));
    if (found.next === null) return;
    const more = h("li", {}, button("More", () => {
      more.remove();
      this.#more(list, prefix, found.next).catch(fail);
    }));
    list.append(more);
  }

  #item(item) {
    const name = item.has_message
      ? button(shown(item.level), () => this.open(item.topic), "plain topic") : h("span", { class: "topic" }, shown(item.level));
    if (!item.has_levels) return h("li", {}, h("span", { class: "fold" }), name);
    // A name that opens nothing else unfolds what is below it.
    const label = { "aria-expanded": "false", "aria-label": `Levels below ${shown(item.level)}` };
    const fold = h("button", { type: "button", class: item.has_message ? "fold" : "fold topic", ...label }, !item.has_message && shown(item.level));
    const row = h("li", {}, fold, item.has_message && name);
    let below = null;
    const turn = async () => {
      const isOpen = fold.getAttribute("aria-expanded") === "true";
      fold.setAttribute("aria-expanded", String(!isOpen));
      if (!isOpen && !below) {
        below = await this.level(`${item.topic}/`);
        row.append(below);
      }
      below.hidden = isOpen;
    };
    fold.addEventListener("click", () => turn().catch(fail));
    return row;
  }
}

export default {
  path: "retained",
  title: "Retained",
  group: "MQTT",
  async show(view) {
    const vhosts = state.vhosts;
    const vhost = view.query.vhost || view.vhost || (vhosts.includes("/") ? "/" : vhosts[0]);
    if (vhost === undefined) {
      replace(view.element, h("h1", {}, "Retained messages"), h("p", { class: "empty" }, "There is no virtual host for you."));
      return;
    }
    const options = { signal: view.signal };
    const [tree, message, results] = [h("div"), h("div"), h("div")];

    async function open(topic) {
      keep({ vhost, filter: filter.value, topic });
      let found;
      let allowed;
      try {
        [found, allowed] = await Promise.all([get(at`vhosts/${vhost}/retained/${topic}`, {}, options), access(vhost, { topic }, options)]);
      } catch (error) {
        if (error.status !== 404) throw error;
        replace(message, h("p", { class: "empty" }, `Nothing is retained for “${topic}” any more.`));
        return;
      }
      const clear = () => confirm("Clear the message?", `Nothing is retained for “${topic}” then.`, "Clear", async () => {
        await del(at`vhosts/${vhost}/retained/${topic}`);
        notify(`The message of “${topic}” is cleared.`);
        replace(message);
        await load();
      });
      const title = h("h3", { tabindex: "-1" }, topic);
      replace(message, h("div", { class: "heading" }, title, h("div", { class: "buttons" },
        allowed.write && leads("Publish", "publish", { road: "topic", vhost, topic, retain: "yes" }), offers([button("Clear", clear, "danger"), refusal(allowed, "write", topic)]))),
      messageView(found, [["Published", format.time(found.published_at)], ["Mode", found.mode], ["Size", format.bytes(found.bytes)]]));
      title.focus();
    }
    const look = (topic) => open(topic).catch(fail);

    async function search() {
      keep({ vhost, filter: filter.value });
      if (!filter.value) {
        replace(results);
        return;
      }
      const found = await get(at`vhosts/${vhost}/retained`, { filter: filter.value, limit: FOUND }, options);
      replace(results, found.items.length ? h("ul", { class: "tree" }, found.items.map((each) =>
        h("li", {}, button(each.topic, () => look(each.topic), "plain topic"), " ", h("span", { class: "hint" }, format.bytes(each.bytes)))))
        : h("p", { class: "empty" }, "There are none."), found.next !== null && h("p", { class: "hint" }, `These are the first ${FOUND}.`));
      announce(`${found.items.length} found`);
    }

    const load = async () => {
      const found = await new Tree(vhost, options, look).level("");
      replace(tree, found.children.length ? found : h("p", { class: "empty" }, "Nothing is retained."));
    };
    const filter = h("input", { type: "search", name: "filter", value: view.query.filter, spellcheck: "false", maxlength: "255" });
    const send = (event) => {
      event.preventDefault();
      search().catch(fail);
    };
    const picker = choice("vhost", vhosts, vhost);
    picker.addEventListener("change", () => {
      location.hash = link("retained", { vhost: picker.value });
    });
    replace(view.element, h("h1", {}, "Retained messages"),
      h("form", { class: "card row", onsubmit: send }, field("Virtual host", picker),
        field("Topic filter", filter, "+ is any one level, # at the end all further ones"), h("button", { type: "submit", class: "main" }, "Search"),
        button("Tree anew", () => load().catch(fail))),
      results, h("div", { class: "halves" }, section("Topics", tree), section("Message", message)));
    await load();
    if (filter.value) await search();
    if (view.query.topic) await open(view.query.topic);
  },
};
