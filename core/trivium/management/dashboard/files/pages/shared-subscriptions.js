// Shared subscriptions: sessions among which each message goes to one.

import { at } from "../api.js";
import { h, replace } from "../dom.js";
import * as format from "../format.js";
import { named } from "../parts.js";
import { state } from "../state.js";
import { listTable } from "../table.js";

// Members that are named in a row.
const MOST = 20;

const members = (share) => [
  share.members.slice(0, MOST).map((client) => [named(client, "sessions", share.vhost, client), " "]),
  share.members.length > MOST && `and ${format.count(share.members.length - MOST)} more`];

export default {
  path: "shared-subscriptions",
  title: "Shared subscriptions",
  group: "MQTT",
  needs: "monitoring",
  show(view) {
    const vhost = view.vhost || (state.vhosts.includes("/") ? "/" : state.vhosts[0]);
    if (vhost === undefined) {
      replace(view.element, h("h1", {}, "Shared subscriptions"), h("p", { class: "empty" }, "There is no virtual host for you."));
      return;
    }
    const found = listTable(view, {
      path: at`vhosts/${vhost}/shared-subscriptions`,
      caption: "Shared subscriptions",
      columns: [
        { title: "Share", sort: "name", cell: (each) => each.name },
        { title: "Topic filter", sort: "filter", cell: (each) => h("code", {}, each.filter) },
        { title: "Sessions", cell: members },
        { title: "How many", isNumber: true, cell: (each) => format.count(each.members.length) },
      ],
    });
    replace(view.element, h("h1", {}, "Shared subscriptions in ", vhost), found.element);
  },
};
