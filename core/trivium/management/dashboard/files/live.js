// The figures of each second, as one stream for all pages. What has passed is kept for charts.

import { request } from "./api.js";

// Seconds of figures that are kept.
const KEPT = 300;

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
    const answer = await request("GET", "live", { signal: own.signal });
    await read(answer.body.getReader());
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) return;
    wait = 5000;
    tell(null, error.name === "Problem" ? error.message : "the broker does not answer");
  } finally {
    if (abort === own) abort = null;
  }
  if (isWanted && !document.hidden) timer = setTimeout(() => !abort && run(), wait);
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
