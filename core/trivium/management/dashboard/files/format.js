// Numbers and times for people, in the browser's own language.

const whole = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
const dates = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

function scaled(value, units, base) {
  let size = Math.abs(value);
  let unit = 0;
  while (size >= base && unit < units.length - 1) {
    size /= base;
    unit += 1;
  }
  return `${value < 0 ? "-" : ""}${short.format(size)}${units[unit]}`;
}

export const bytes = (value) =>
  value === null || value === undefined || value < 0 ? "–" : scaled(value, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 1024);
export const compact = (value) => scaled(value, ["", "k", "M", "G", "T"], 1000);
export const rate = (value) => (value === null || value === undefined ? "–" : `${compact(value)}/s`);
export const byteRate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);
export const time = (ms) => dates.format(new Date(ms));
export const hour = (ms) => hours.format(new Date(ms));

export function duration(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  if (ms < 1000) return `${short.format(ms)} ms`;
  const parts = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
  const found = [];
  let left = ms;
  for (const [size, unit] of parts) {
    if (left >= size) {
      found.push(`${Math.floor(left / size)} ${unit}`);
      left %= size;
    }
  }
  return found.slice(0, 2).join(" ");
}

// Characters of a text that clients choose; some are very long.
const LONGEST = 300;
export const clipped = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}… (${count(text.length)} characters)` : text);

// A value of JSON as one line.
export function plain(value) {
  if (value === null || value === undefined || value === "") return "–";
  return clipped(typeof value === "object" ? JSON.stringify(value) : String(value));
}
