// The list of streams: a window of rows over as many as there are.
import { state } from "./address.js";
import { ask, connected } from "./server.js";
import { $, count, css, make, percent, plural, rate, say } from "./util.js";

const ROW = 48, PAGE = 50;
export const list = { total: 0, at: 0, pages: new Map(), rows: [], version: -1, open: () => {} };

async function loadPage(number) {
  const query = new URLSearchParams({ offset: number * PAGE, limit: PAGE, search: state.search, sort: state.sort });
  const wanted = state.search + "\n" + state.sort;
  const found = await ask("streams?" + query);
  if (wanted !== state.search + "\n" + state.sort) return;
  list.total = found.total;
  list.pages.set(number, found.streams);
  $("count").textContent = plural(found.total, "stream", "streams") + (state.search ? " found" : "") +
    (found.alarms ? `, ${count(found.alarms)} with an alarm` : "");
}

export async function refreshList(reset) {
  const box = $("list");
  if (reset) { list.pages.clear(); box.scrollTop = 0; list.at = 0; }
  const first = Math.floor(box.scrollTop / ROW / PAGE), last = Math.floor((box.scrollTop + box.clientHeight) / ROW / PAGE);
  const wanted = [];
  for (let n = first; n <= last; n++) wanted.push(loadPage(n));
  for (const n of list.pages.keys()) if (n < first - 2 || n > last + 2) list.pages.delete(n);
  try { await Promise.all(wanted); } catch { connected(false); }
  drawList();
}

const streamAt = (i) => (list.pages.get(Math.floor(i / PAGE)) || [])[i % PAGE];

function makeRow() {
  const row = make("div", null, "row");
  row.setAttribute("role", "option");
  row.append(make("b"), make("canvas"), make("span"));
  row.addEventListener("click", () => { list.at = row.index; list.open(row.stream); });
  list.rows.push(row);
  $("rows").append(row);
}

export function drawList() {
  const box = $("list");
  $("rows").style.height = list.total * ROW + "px";
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 2);
  const last = Math.min(list.total, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 2);
  while (list.rows.length < last - first) makeRow();
  list.rows.forEach((row, k) => {
    const index = first + k, stream = index < last ? streamAt(index) : null;
    row.hidden = !stream;
    if (!stream) return;
    Object.assign(row, { index, stream: stream.name, id: "row-" + index });
    row.style.top = index * ROW + "px";
    row.classList.toggle("bad", !!stream.alarm);
    row.classList.toggle("stale", stream.stale);
    row.classList.toggle("at", index === list.at && document.activeElement === box);
    row.setAttribute("aria-selected", stream.name === state.stream);
    row.setAttribute("aria-setsize", list.total);
    row.setAttribute("aria-posinset", index + 1);
    row.children[0].textContent = row.children[0].title = stream.name;
    const state_ = stream.alarm ? (stream.alarm.kind === "stale" ? "stale · " : "alarm · ") : stream.stale ? "stale · " : "";
    row.children[2].textContent = row.children[2].title = state_ + (stream.n ? `moved ${percent(stream.shift)} · ${rate(stream.rate)}/s · ${count(stream.n)}` : "no samples yet");
    spark(row.children[1], stream.spark, stream.alarm);
  });
  if (list.total) box.setAttribute("aria-activedescendant", "row-" + list.at);
  else box.removeAttribute("aria-activedescendant");
}

export function spark(canvas, values, alarm) {
  const ratio = devicePixelRatio || 1, w = 80, h = 36, pen = canvas.getContext("2d");
  canvas.width = w * ratio; canvas.height = h * ratio;
  pen.scale(ratio, ratio);
  if (!values.length) return;
  const high = Math.max(0.05, ...values), x = (i) => 2 + (i * (w - 4)) / Math.max(1, values.length - 1);
  pen.strokeStyle = alarm ? css("--red") : css("--blue"); pen.lineWidth = 1.5; pen.beginPath();
  values.forEach((v, i) => pen[i ? "lineTo" : "moveTo"](x(i), h - 3 - (v / high) * (h - 6)));
  if (values.length === 1) pen.lineTo(w - 2, h - 3 - (values[0] / high) * (h - 6));
  pen.stroke();
}

export function listKey(event) {
  const jump = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Enter" || event.key === " ") { const s = streamAt(list.at); if (s) list.open(s.name); event.preventDefault(); return; }
  if (jump === undefined) return;
  event.preventDefault();
  list.at = Math.max(0, Math.min(list.total - 1, list.at + jump));
  const box = $("list"), top = list.at * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  drawList();
  const s = streamAt(list.at);
  if (s) say(s.name);
}
