// What all pages know: who has signed in, which virtual host is chosen, dark or light.

import { field } from "./dialogs.js";
import { h } from "./dom.js";

export const state = {
  // { name, tags }, or null before anybody has signed in.
  caller: null,
  // "" for all virtual hosts.
  vhost: "",
  vhosts: [],
  // Those of them in which the user may make something.
  makesIn: [],
};

// What is remembered in the browser: no secret.
export function remembered(name) {
  try {
    return localStorage.getItem(`trivium-${name}`) || "";
  } catch {
    return "";
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`trivium-${name}`, value);
  } catch {
    // A browser may keep nothing.
  }
}

const ABOVE = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

// Whether the user has a tag, or one above it.
export function may(tag) {
  return ABOVE[tag].some((each) => state.caller?.tags.includes(each));
}

// Whether the user may make something in the virtual host that is chosen, or in any.
export const mayMake = () => (state.vhost ? state.makesIn.includes(state.vhost) : state.makesIn.length > 0);

// In a form: the virtual host in which something is to be made.
export const vhostField = () => field("Virtual host", h("select", { name: "vhost" },
  state.makesIn.map((name) => h("option", { value: name, selected: name === state.vhost }, name))));
