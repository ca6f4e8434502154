// Small helpers. Names are other people's text: they only ever become text nodes.

export const $ = (id) => document.getElementById(id);

export function make(tag, text, cls) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (cls) element.className = cls;
  return element;
}

// Change an element only where it differs: a text that is written anew is read out again.
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function later(work, wait) {
  let timer = 0;
  return (...args) => { clearTimeout(timer); timer = setTimeout(() => work(...args), wait); };
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const say = (text) => { $("said").textContent = text; };

// numbers

export function percent(x) {
  const digits = x >= 0.1 ? (100 * x).toFixed(1) : x >= 0.001 ? (100 * x).toFixed(2) : x > 0 ? (100 * x).toPrecision(2) : "0";
  return digits + "\u00a0%"; // no line break before the sign
}
export const count = (n) => Math.round(n).toLocaleString("en");
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
export const rate = (x) => (x >= 10 ? count(x) : x.toFixed(1));

// times, in the browser's time zone

const DAY = { year: "numeric", month: "short", day: "numeric" }, TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const full = new Intl.DateTimeFormat("en-GB", { ...DAY, ...TIME }), short = new Intl.DateTimeFormat("en-GB", TIME);

export const when = (t) => (t ? full.format(new Date(t * 1000)) : "never");
export function clock(t) {
  const date = new Date(t * 1000);
  return date.toDateString() === new Date().toDateString() ? short.format(date) : full.format(date);
}
export function lasted(seconds) {
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]])
    if (seconds >= size) return plural(Math.floor(seconds / size), unit, unit + "s");
  return plural(Math.max(0, Math.floor(seconds)), "second", "seconds");
}
export function zone() {
  const minutes = -new Date().getTimezoneOffset(), ahead = Math.abs(minutes);
  const offset = "UTC" + (minutes < 0 ? "−" : "+") + Math.floor(ahead / 60) + (ahead % 60 ? ":" + String(ahead % 60).padStart(2, "0") : "");
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name === "UTC" ? "UTC" : `${name} (${offset})`;
}

// The colour of a class stays the same while classes come and go, and when the page is loaded again.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#b8529a", "#9a6b00", "#3f8fd2", "#6b5bb8", "#7a8b00", "#c0392b", "#1b9e9e", "#8c564b", "#5f6b7a"];
const known = new Map();

export function colours(stream, classes) {
  if (!known.has(stream)) {
    try { known.set(stream, JSON.parse(sessionStorage.getItem("reprior-colours " + stream)) || {}); } catch { known.set(stream, {}); }
  }
  const mine = known.get(stream), fresh = classes.filter((c) => !(c in mine));
  for (const c of fresh) {
    const used = new Array(PALETTE.length).fill(0);
    for (const other of classes) if (other in mine) used[mine[other]] += 1;
    const start = c % PALETTE.length, least = Math.min(...used);
    let at = start;
    while (used[at] > least) at = (at + 1) % PALETTE.length;
    mine[c] = at;
  }
  if (fresh.length) try { sessionStorage.setItem("reprior-colours " + stream, JSON.stringify(mine)); } catch { /* no room: fine */ }
  return classes.map((c) => PALETTE[mine[c]]);
}
