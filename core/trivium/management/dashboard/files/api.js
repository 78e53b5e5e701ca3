// Asks /api/v1. The browser adds the cookie of the session, which no script can read.

const ROOT = "api/v1/";

// Why a request was refused: problem details (RFC 9457).
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.name = "Problem";
    this.status = status;
    this.kind = String(problem.type || "").replace("urn:trivium:problem:", "");
    this.title = problem.title || "";
  }
}

// "." and "..", which browsers take out of paths, are encoded twice; so are these names encoded.
function segment(value) {
  let name = String(value);
  if (/^\.\.?$/.test(name)) name = name.replaceAll(".", "%2E");
  else if (/^%(25)*2E(%(25)*2E)?$/.test(name)) name = name.replaceAll("%", "%25");
  return encodeURIComponent(name);
}

// A path whose values are segments: at`vhosts/${vhost}/queues/${name}`.
export function at(texts, ...values) {
  return texts.reduce((path, text, index) => path + segment(values[index - 1]) + text);
}

// What is asked for where one virtual host is chosen, or none: inVhost("/", "queues").
export function inVhost(vhost, things) {
  return vhost ? `${at`vhosts/${vhost}`}/${things}` : things;
}

const whenSignedOut = [];

// Call this once the session is over.
export function onSignedOut(work) {
  whenSignedOut.push(work);
}

function address(path, query) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return ROOT + path + (given.length ? `?${new URLSearchParams(given)}` : "");
}

// The answer as it is. Throws Problem.
export async function request(method, path, options = {}) {
  const headers = { "Trivium-Page": "1", ...options.headers };
  const init = { method, headers, signal: options.signal, cache: "no-store", credentials: "same-origin" };
  if (options.body !== undefined) init.body = JSON.stringify(options.body);
  if (options.raw !== undefined) init.body = options.raw;
  if (method !== "GET") headers["Content-Type"] ??= "application/json";
  let answer;
  try {
    answer = await fetch(address(path, options.query), init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No answer", detail: "the broker does not answer" });
  }
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = await answer.json();
  } catch {
    // Somebody between us and the broker.
  }
  if (answer.status === 401 && !options.isSigningIn) whenSignedOut.forEach((work) => work());
  throw new Problem(answer.status, problem);
}

async function told(method, path, options) {
  const text = await (await request(method, path, options)).text();
  return text ? JSON.parse(text) : null;
}

export const get = (path, query, options) => told("GET", path, { ...options, query });
export const put = (path, body, options) => told("PUT", path, { ...options, body });
export const post = (path, body, options) => told("POST", path, { ...options, body });
export const del = (path, options) => told("DELETE", path, options);

const PAGE_SIZE = 500;

// All items of a list, up to so many: { items, isWhole }.
export async function all(path, query, options, most = 2000) {
  const items = [];
  for (let page = 1; ; page += 1) {
    const found = await get(path, { ...query, page, page_size: PAGE_SIZE }, options);
    items.push(...found.items);
    if (page >= found.page_count) return { items, isWhole: true };
    if (items.length >= most) return { items, isWhole: false };
  }
}

const encoded = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

// Begin a session. What was typed is sent once, and kept nowhere.
export function signIn({ user, password, token }) {
  const shown = token ? `Bearer ${token}` : `Basic ${encoded(`${user}:${password}`)}`;
  return told("POST", "session", { headers: { Authorization: shown }, isSigningIn: true });
}

// Why clients cannot publish; "" while they can.
export async function readiness(options) {
  const answer = await fetch("health/ready", { ...options, cache: "no-store" });
  return answer.ok ? "" : (await answer.json()).reason;
}

export const signOut = () => del("session");
// Who has signed in; null for nobody. It is no refusal, which the browser would write down.
export const signedInAs = async () => (await get("session")).caller;

// What stands for the default exchange in a path.
export const DEFAULT = "amq.default";

// What the user may do with what has a name, or with a topic: { configure, write, read }.
export const access = (vhost, what, options) => get(at`vhosts/${vhost}/access`, what, options);
