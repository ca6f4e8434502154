// What is known of the stream that is shown, and the points of its charts.
import { fixed, now, span, state } from "./address.js";
import { ask, at } from "./server.js";

export const POINTS = 300, LINES = 8;
export const view = { about: null, past: null, live: null, alarms: [], versions: [], chosen: [], shown: [], t: [], n: [], series: [], cells: [], asked: 0, pending: null, slow: 0 };

export function forget() {
  Object.assign(view, { about: null, past: null, live: null, pending: null, alarms: [], versions: [], t: [], n: [], series: [], cells: [] });
}

const difference = (c) => Math.abs(view.live.prior[c] - view.about.source[c]);
export const farthestFirst = (classes) => [...classes].sort((a, b) => difference(b) - difference(a));

export function matching() {
  const text = state.classes.toLowerCase(), all = view.about.classes.map((_, c) => c);
  return text ? all.filter((c) => view.about.classes[c].toLowerCase().includes(text)) : all;
}

export async function loadPast() {
  const name = state.stream, [from, to] = span();
  const query = new URLSearchParams({ from: Math.max(0, from), to: fixed() ? to : to + 1, points: POINTS, heat: 1, top: LINES });
  view.shown = matching();
  if (state.classes) {
    const some = farthestFirst(view.shown).slice(0, LINES);
    if (some.length) query.set("classes", some.join(",")); else query.set("top", 0);
  }
  view.asked = performance.now();
  const past = await ask(at(name, "/history?" + query));
  if (name !== state.stream) return false;
  const raw = atob(past.heat.cells), k = view.about.classes.length;
  view.past = past; view.chosen = past.classes;
  view.t = past.t.slice(); view.n = past.n.slice();
  view.cells = past.t.map((_, i) => Int8Array.from({ length: k }, (_, c) => raw.charCodeAt(i * k + c)));
  view.series = view.chosen.map((_, c) => [past.upper, past.prior, past.lower].map((rows) => rows.map((row) => row[c])));
  return true;
}

// Put the newest state at the end; within one step of the time axis it replaces the one before.
export function append(told) {
  const { t, n, cells } = view, [from, to] = span(), last = t.length - 1, step = (to - from) / POINTS;
  if (told.seen < from || (fixed() && told.seen > to)) return;
  if (last >= 0 && told.n === n[last] && told.seen - t[last] < 0.01) return; // the file rounds to milliseconds
  const replaces = last >= 0 && told.seen <= t[last] + (last > 0 ? Math.max(0, step - (t[last] - t[last - 1])) : 0);
  const k = view.about.classes.length, source = view.about.source, range = view.past.heat.range, column = new Int8Array(k);
  for (let c = 0; c < k; c++) {
    const x = Math.log2(Math.max(told.prior[c], 1e-12) / source[c]) / range;
    column[c] = Math.round(127 * Math.max(-1, Math.min(1, x)));
  }
  const place = replaces ? last : last + 1;
  t[place] = Math.max(told.seen, place ? t[place - 1] : 0); n[place] = told.n; cells[place] = column;
  view.chosen.forEach((c, s) => {
    view.series[s][0][place] = told.upper[c]; view.series[s][1][place] = told.prior[c]; view.series[s][2][place] = told.lower[c];
  });
  let drop = 0;
  while (drop < t.length - 2 && t[drop + 1] < from) drop++;
  if (drop) for (const array of [t, n, cells, ...view.series.flat()]) array.splice(0, drop);
}

// Marks on the time axis: when alarms were raised, acknowledged and resolved, and when model versions began.
export function marks() {
  const found = view.versions.filter((v) => v.version > 1).map((v) => ({ t: v.since, kind: "version", text: `Model version ${v.version} began` }));
  for (const a of view.alarms) {
    const name = { stale: "No samples", "not label shift": "Not label shift" }[a.kind] || "Alarm";
    found.push({ t: a.raised, since: a.since || a.raised, kind: a.kind === "stale" ? "silent" : "raised", text: `${name}: raised` });
    if (a.acknowledged) found.push({ t: a.acknowledged, kind: "done", text: `${name}: acknowledged by ${a.by}` });
    else if (a.resolved) found.push({ t: a.resolved, kind: "done", text: `${name}: over` });
  }
  return found;
}

// The samples per second between points; a stream that has stopped has none.
export function rates() {
  const { t, n } = view, times = [], values = [], [from, to] = span(), end = Math.min(to, now());
  for (let i = 0; i < t.length; i++) {
    const value = i ? (n[i] < n[i - 1] ? n[i] : n[i] - n[i - 1]) / Math.max(0.05, t[i] - t[i - 1]) : t.length > 1 ? Math.max(0, n[1] - n[0]) / Math.max(0.05, t[1] - t[0]) : null;
    times.push(t[i]); values.push(value);
  }
  const last = t[t.length - 1], quiet = Math.max(10, 3 * (to - from) / POINTS);
  if (t.length && end - last > quiet) { times.push(last + 0.001, end); values.push(0, 0); }
  return [times, values];
}
