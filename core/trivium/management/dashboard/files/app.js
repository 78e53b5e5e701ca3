// The frame of all pages: who has signed in, where to go, what went wrong.

import * as api from "./api.js";
import { closeDialogs, fail, forgetTroubles } from "./dialogs.js";
import { announce, h, replace } from "./dom.js";
import * as live from "./live.js";
import { pages } from "./pages/index.js";
import { parse, link } from "./router.js";
import { may, remember, remembered, state } from "./state.js";
import signInPage from "./pages/sign-in.js";

// Where the menu stands beside the page; else it lies above it, and can be closed.
const isWide = matchMedia("(min-width: 60rem)");
const THEMES = { "": "As the system", light: "Light", dark: "Dark" };

let current = null;
let main = null;
let banner = null;

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

const allowed = () => pages.filter((page) => (page.isOffered ? page.isOffered() : may(page.needs || "management")));

function find(names) {
  return allowed().find((page) => {
    const pattern = page.path.split("/");
    return pattern.length === names.length && pattern.every((part, index) => part.startsWith(":") || part === names[index]);
  });
}

// What a page is given: where it is, and what ends when it is left.
function makeView(page, names, query) {
  const abort = new AbortController();
  const timers = new Set();
  const leaving = [];
  return {
    element: h("div", { class: "page" }),
    names: Object.fromEntries(page.path.split("/").flatMap((part, index) => (part.startsWith(":") ? [[part.slice(1), names[index]]] : []))),
    query,
    vhost: state.vhost,
    signal: abort.signal,
    // Call now and each so many seconds, while the page is shown and looked at.
    every(seconds, work) {
      let isBusy = false;
      const tick = async () => {
        if (isBusy || document.hidden) return;
        isBusy = true;
        try {
          await work();
          if (!abort.signal.aborted) say("page", "");
        } catch (error) {
          if (!abort.signal.aborted) this.failed(error);
        } finally {
          isBusy = false;
        }
      };
      timers.add(setInterval(tick, seconds * 1000));
      return tick();
    },
    // Call with the figures of each second.
    live(work) {
      leaving.push(live.listen(work));
    },
    // Show why something cannot be shown.
    failed(error) {
      if (error.name !== "Problem") throw error;
      if (error.status === 401) return;
      if (error.status === 404 || error.status === 403) {
        this.leave();
        replace(this.element, h("h1", {}, error.status === 404 ? "There is no such thing" : "Not for you"),
          h("p", {}, error.message), h("p", {}, h("a", { href: link(names[0]) }, "Back")));
        return;
      }
      say("page", error.message);
    },
    leave() {
      abort.abort();
      timers.forEach(clearInterval);
      leaving.forEach((work) => work());
    },
  };
}

// A line above all pages: what is wrong with the broker, and with the page; "" for nothing.
const wrong = { broker: "", page: "" };

function say(where, text) {
  wrong[where] = text;
  const all = [...new Set([wrong.broker, wrong.page])].filter(Boolean).join(" ");
  if (!banner || banner.textContent === all) return;
  banner.textContent = all;
  banner.hidden = !all;
}

async function route() {
  if (!state.caller) return;
  const { names, query } = parse(location.hash);
  if (!names.length) {
    location.replace(link(allowed()[0].path));
    return;
  }
  current?.leave();
  say("page", "");
  forgetTroubles();
  const page = find(names);
  markWhereWeAre(names[0]);
  if (!page) {
    current = null;
    replace(main, h("div", { class: "page" }, h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: link("overview") }, "Overview"))));
    return;
  }
  const view = makeView(page, names, query);
  current = view;
  const title = page.title || view.names[Object.keys(view.names).at(-1)];
  document.title = `${title} – Trivium`;
  replace(main, view.element);
  window.scrollTo(0, 0);
  try {
    await page.show(view);
  } catch (error) {
    if (!view.signal.aborted) view.failed(error);
  }
}

// The focus goes to what is new, for keyboards and for whoever hears the page.
function routed() {
  closeDialogs();
  if (!isWide.matches) document.querySelector(".menu[open]")?.removeAttribute("open");
  main?.focus({ preventScroll: true });
  route().then(() => announce(document.title));
}

function markWhereWeAre(first) {
  for (const each of document.querySelectorAll(".pages-of-all a")) {
    if (parse(each.getAttribute("href")).names[0] === first) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

function navigation() {
  const groups = new Map();
  for (const page of allowed()) {
    if (!page.group) continue;
    if (!groups.has(page.group)) groups.set(page.group, []);
    groups.get(page.group).push(page);
  }
  return h("nav", { class: "pages-of-all", "aria-label": "Pages" }, [...groups].map(([name, found]) =>
    h("div", {}, h("h2", { class: "group" }, name), h("ul", {}, found.map((page) => h("li", {}, h("a", { href: link(page.path) }, page.title)))))));
}

function vhostPicker() {
  const choose = () => {
    state.vhost = picker.value;
    remember("vhost", picker.value);
    route();
  };
  const picker = h("select", { id: "vhost", onchange: choose });
  const fill = () => replace(picker, h("option", { value: "" }, "All"), state.vhosts.map((name) => h("option", { value: name, selected: name === state.vhost }, name)));
  fill();
  document.addEventListener("vhosts-changed", () => loadVhosts().then(fill, fail));
  return h("div", { class: "choice" }, h("label", { for: "vhost" }, "Virtual host"), picker);
}

async function loadVhosts() {
  const { items } = await api.all("vhosts");
  state.vhosts = items.map((vhost) => vhost.name);
  state.makesIn = items.filter((vhost) => vhost.may_configure).map((vhost) => vhost.name);
  const wanted = remembered("vhost");
  state.vhost = state.vhosts.includes(wanted) ? wanted : "";
}

function themePicker() {
  const choose = () => {
    theme(picker.value);
    remember("theme", picker.value);
  };
  const picker = h("select", { id: "theme", onchange: choose },
    Object.entries(THEMES).map(([value, text]) => h("option", { value, selected: value === remembered("theme") }, text)));
  return h("div", { class: "choice" }, h("label", { for: "theme" }, "Colours"), picker);
}

async function leave() {
  try {
    await api.signOut();
  } catch (error) {
    fail(error);
  }
  signedOut();
}

function frame() {
  main = h("main", { id: "main", tabindex: "-1" });
  banner = h("div", { class: "banner", role: "alert", hidden: true });
  const jump = (event) => {
    event.preventDefault();
    main.focus();
  };
  const side = h("details", { class: "menu", open: isWide.matches },
    h("summary", {}, "Menu"), h("div", { class: "side" }, navigation(), h("section", { "aria-label": "Choices" }, vhostPicker(), themePicker(),
      h("div", { class: "who" }, h("span", {}, state.caller.name), h("button", { type: "button", onclick: leave }, "Sign out")))));
  replace(document.body, h("a", { class: "skip", href: "#main", onclick: jump }, "Skip to the content"),
    h("header", { class: "top" }, h("a", { class: "brand", href: link("overview") }, "Trivium"), h("span", { id: "state", class: "state" })),
    h("div", { class: "columns" }, side, h("div", { class: "content" }, banner, main)));
  live.listen(showState);
}

// How the broker is, on all pages.
function showState(figures, reason) {
  const place = document.getElementById("state");
  if (!place) return;
  if (!figures) {
    replace(place, "no live figures");
    say("broker", reason);
    return;
  }
  const on = figures.overview.alarms.filter((alarm) => alarm.is_on).map((alarm) => alarm.resource);
  replace(place, `${figures.overview.version} · ${figures.overview.state}`);
  place.classList.toggle("bad", figures.overview.state !== "running");
  say("broker", on.length ? `Publishers wait: too little ${on.join(" and ")}.` : figures.overview.state === "running" ? "" : "Publishers wait.");
}

async function signedIn(caller) {
  state.caller = caller;
  await loadVhosts();
  frame();
  live.start();
  await route();
}

function signedOut() {
  live.stop();
  current?.leave();
  current = null;
  const hadCaller = state.caller !== null;
  state.caller = null;
  main = null;
  closeDialogs();
  replace(document.body, h("main", { id: "main" }, signInPage(signedIn, hadCaller)));
  document.title = "Sign in – Trivium";
  document.querySelector("input")?.focus();
}

// A menu that lies over the page closes by Escape.
document.addEventListener("keydown", (event) => {
  const menu = document.querySelector(".menu[open]");
  if (event.key === "Escape" && menu && !isWide.matches && !document.querySelector("dialog")) {
    menu.removeAttribute("open");
    menu.querySelector("summary").focus();
  }
});

isWide.addEventListener("change", () => document.querySelector(".menu")?.toggleAttribute("open", isWide.matches));

async function begin() {
  theme(remembered("theme"));
  api.onSignedOut(() => state.caller && signedOut());
  window.addEventListener("hashchange", routed);
  try {
    const caller = await api.signedInAs();
    if (caller) await signedIn(caller);
    else signedOut();
  } catch (error) {
    if (error.name !== "Problem") throw error;
    signedOut();
  }
}

begin();
