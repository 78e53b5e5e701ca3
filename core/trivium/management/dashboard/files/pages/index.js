// All pages, in the order of the navigation. A page is
//
//   path    "queues/:vhost/:name": segments of the address, those with a colon are handed over
//   title   of the page; without one the last name is it
//   group   heading of the navigation under which it stands; none: it is not there
//   needs   the tag that a user needs, or one above it; "management" where nothing is said
//   isOffered  in place of that: says whether the user may have it
//   show    makes it: fills view.element (see makeView in app.js)

import connections from "./connections.js";
import exchanges from "./exchanges.js";
import groups from "./groups.js";
import keys from "./keys.js";
import messages from "./messages.js";
import node from "./node.js";
import overview from "./overview.js";
import policies from "./policies.js";
import publish from "./publish.js";
import queues from "./queues.js";
import retained from "./retained.js";
import roles from "./roles.js";
import sessions from "./sessions.js";
import sharedSubscriptions from "./shared-subscriptions.js";
import streams from "./streams.js";
import users from "./users.js";
import vhosts from "./vhosts.js";

export const pages = [
  overview, node, queues, streams, groups, exchanges, messages, publish, connections, sessions, sharedSubscriptions, retained, policies, vhosts,
  users, roles, keys,
].flat();
