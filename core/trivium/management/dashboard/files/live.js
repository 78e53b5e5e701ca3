// The figures of each second, as one stream for all pages. What has passed is kept for charts.
// Where others have all places of such streams, the figures are asked for, less often.

import { request } from "./api.js";

// Figures that are kept.
const KEPT = 300;
// While others have all places: milliseconds between two looks, and looks before a place is asked for again.
const LOOK = 2000;
const LOOKS = 5;
const RATED = ["messages_received", "messages_sent", "bytes_received", "bytes_sent"];

export const history = [];
const listeners = new Set();
let abort = null;
let timer = 0;
let isWanted = false;

// Call with each figures from now on, and at once with the last; what is returned ends that.
// Without figures, because none can be had, it is called with null and the reason.
export function listen(work) {
  listeners.add(work);
  if (history.length) work(history.at(-1), "");
  return () => listeners.delete(work);
}

function tell(figures, reason) {
  for (const work of [...listeners]) work(figures, reason);
}

export function start() {
  isWanted = true;
  if (!abort && !document.hidden) run();
}

export function stop() {
  isWanted = false;
  history.length = 0;
  pause();
}

function pause() {
  clearTimeout(timer);
  abort?.abort();
  abort = null;
}

// Nobody looks at a hidden page: others may have its place.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) pause();
  else if (isWanted && !abort) run();
});

async function run() {
  const own = new AbortController();
  abort = own;
  let wait = 1000;
  try {
    const answer = await place(own.signal);
    if (answer) await read(answer.body.getReader());
    else await look(own.signal);
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) return;
    wait = 5000;
    tell(null, error.name === "Problem" ? error.message : "the broker does not answer");
  } finally {
    if (abort === own) abort = null;
  }
  if (isWanted && !document.hidden) timer = setTimeout(() => !abort && run(), wait);
}

// The stream; null where others have all places.
async function place(signal) {
  try {
    return await request("GET", "live", { signal });
  } catch (error) {
    if (error.status === 429) return null;
    throw error;
  }
}

async function look(signal) {
  for (let left = LOOKS; left; left -= 1) {
    const answer = await request("GET", "overview", { signal });
    const overview = await answer.json();
    const rates = history.length ? ratesBetween(history.at(-1).overview, overview) : [];
    // By the broker's clock, as in the stream.
    take({ at: Date.parse(answer.headers.get("Date")), overview, rates });
    await new Promise((done) => setTimeout(done, LOOK));
    signal.throwIfAborted();
  }
}

function ratesBetween(before, now) {
  const seconds = Math.max(now.uptime_ms - before.uptime_ms, 1) / 1000;
  const earlier = new Map(before.protocols.map((each) => [each.name, each]));
  return now.protocols.filter((each) => earlier.has(each.name)).map((each) => {
    const rate = (name) => Math.max(each[name] - earlier.get(each.name)[name], 0) / seconds;
    return { protocol: each.name, ...Object.fromEntries(RATED.map((name) => [name, rate(name)])) };
  });
}

async function read(reader) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").find((line) => line.startsWith("data: "));
      if (data) take(JSON.parse(data.slice(6)));
    }
  }
}

function take(figures) {
  history.push(figures);
  if (history.length > KEPT) history.shift();
  tell(figures, "");
}
