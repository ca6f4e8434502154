// The address bar holds what is shown, so that a link shows somebody else the same.

import { lasted } from "./util.js";

export const RANGES = [["5m", "5 min", 300], ["1h", "1 h", 3600], ["12h", "12 h", 43200], ["7d", "7 days", 604800], ["1y", "1 year", 31622400]];
const USUAL = { stream: null, range: "1h", from: null, to: null, classes: "", search: "", sort: "name" };
export const state = { ...USUAL };

let ahead = 0; // seconds by which the server's clock is ahead of the browser's
export const setNow = (server) => { ahead = server - Date.now() / 1000; };
export const now = () => Date.now() / 1000 + ahead;

const seconds = (text) => { const t = Date.parse(text) / 1000; return Number.isFinite(t) && t > 0 ? t : null; };
const iso = (t) => new Date(t * 1000).toISOString().replace(".000Z", "Z");

export const ago = (t) => (now() - t < 2 ? "just now" : `${lasted(now() - t)} ago`);

export const fixed = () => state.range === "custom";

// The first and last moment that charts show, whether or not there are samples.
export function span() {
  if (fixed()) return [state.from, state.to];
  const end = now();
  return [end - RANGES.find((r) => r[0] === state.range)[2], end];
}

export function choose(range, from = null, to = null) {
  Object.assign(state, { range, from, to });
}

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, USUAL);
  for (const key of ["stream", "classes", "search", "sort"]) if (given.get(key)) state[key] = given.get(key);
  const from = seconds(given.get("from")), to = seconds(given.get("to"));
  if (from !== null && to !== null && from < to) choose("custom", from, to);
  else if (RANGES.some((r) => r[0] === given.get("range"))) choose(given.get("range"));
}

export function writeAddress(push) {
  const told = new URLSearchParams();
  for (const key of Object.keys(USUAL)) {
    if (state[key] === null || state[key] === USUAL[key] || (key === "range" && fixed())) continue;
    told.set(key, key === "from" || key === "to" ? iso(state[key]) : state[key]);
  }
  const hash = "#" + told;
  if (hash !== (location.hash || "#")) history[push ? "pushState" : "replaceState"](null, "", hash);
}
