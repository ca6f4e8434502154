// The page asks the server for what it shows and no more: a window of the list, a few classes over time, one heat map.
import { choose, fixed, RANGES, readAddress, span, state, writeAddress } from "./address.js";
import { acknowledge, silence } from "./alarms.js";
import { chartKey, zoomOut } from "./charts.js";
import { drawHeat, forgetHeat, heatKey, heatPoint } from "./heat.js";
import { goHome, homeChanged, refreshHome, showHome } from "./home.js";
import { drawList, list, listKey, refreshList } from "./list.js";
import { connected, listen, stopListening } from "./server.js";
import { drawNow } from "./shares.js";
import { drawAll, heardUpdate, refreshPast, showStream, tick } from "./stream.js";
import { $, later, make, plural, say, write, zone } from "./util.js";
import { view } from "./view.js";

const heard = {
  server(told) {
    connected(true, told.trouble);
    write($("overview"), `${plural(told.streams, "stream", "streams")}, ${plural(told.alarms, "alarm", "alarms")}`);
    if (told.version !== list.version) { list.version = told.version; refreshList(); homeChanged(); }
  },
  update: heardUpdate,
  deleted() {
    write($("gone"), `The stream ${state.stream} was deleted.`);
    say($("gone").textContent);
    state.stream = null; writeAddress(); show(); refreshList();
  },
};

const follow = () => listen(view.about && state.stream, heard);

async function show() {
  stopListening(); // of what was shown before nothing more is heard
  showHome(); drawList();
  if (state.stream) await showStream(); else await refreshHome();
  drawRanges();
  follow();
}

list.open = (name) => {
  if (name === state.stream && view.about) return;
  state.stream = name; writeAddress(true); show();
};

// the time range

const local = (t) => new Date((t - new Date(t * 1000).getTimezoneOffset() * 60) * 1000).toISOString().slice(0, 19);

function drawRanges() {
  for (const input of document.getElementsByName("range")) input.checked = input.value === state.range;
  $("custom").hidden = !fixed();
  if (fixed()) { $("from").value = local(state.from); $("to").value = local(state.to); }
}

function rangeChanged() {
  drawRanges();
  forgetHeat();
  if (view.about) refreshPast();
}

function picked(key) {
  if (key === "custom") choose("custom", ...span().map((t, k) => (k ? Math.ceil(t) : Math.floor(t)))); else choose(key);
  writeAddress(true);
  rangeChanged();
}

function customPicked() {
  const [from, to] = ["from", "to"].map((id) => new Date($(id).value).getTime() / 1000);
  write($("range-error"), from < to ? "" : "The first time must lie before the second.");
  if (!(from < to)) return;
  choose("custom", from, to);
  writeAddress();
  rangeChanged();
}

function theme(next) {
  const kinds = ["auto", "light", "dark"];
  let kind = localStorage.getItem("reprior-theme") || "auto";
  if (next) { kind = kinds[(kinds.indexOf(kind) + 1) % 3]; localStorage.setItem("reprior-theme", kind); }
  const dark = kind === "dark" || (kind === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  write($("theme"), "Theme: " + kind);
  drawList(); drawAll(); showHome();
}

function makeRanges() {
  for (const [key, text] of [...RANGES, ["custom", "Custom"]]) {
    const label = make("label"), input = make("input");
    Object.assign(input, { type: "radio", name: "range", value: key });
    input.addEventListener("change", () => picked(key));
    label.append(input, make("span", text));
    $("ranges").append(label);
  }
  for (const id of ["from", "to"]) $(id).addEventListener("change", customPicked);
  $("unzoom").addEventListener("click", zoomOut);
  addEventListener("reprior-range", rangeChanged);
}

function readNew() {
  readAddress();
  $("search").value = state.search; $("sort").value = state.sort;
  write($("gone"), "");
  refreshList(true); show();
}

function bind() {
  const on = (id, kind, work) => $(id).addEventListener(kind, work);
  on("search", "input", later(() => { state.search = $("search").value; writeAddress(); refreshList(true); }, 120));
  on("sort", "change", () => { state.sort = $("sort").value; writeAddress(); refreshList(true); });
  on("classes", "input", later(() => { state.classes = $("classes").value; forgetHeat(); writeAddress(); if (view.about) refreshPast(); }, 120));
  const fill = later(() => refreshList(), 60);
  on("list", "scroll", () => { drawList(); fill(); });
  on("list", "keydown", listKey); on("list", "focus", drawList); on("list", "blur", drawList);
  on("now", "scroll", () => { if (view.past) drawNow(); });
  on("heat", "mousemove", heatPoint); on("heat", "keydown", heatKey);
  on("heat", "mouseleave", () => { forgetHeat(); if (view.past) drawHeat(); });
  for (const id of ["lines", "rate"]) on(id, "keydown", chartKey);
  on("acknowledge", "submit", (event) => acknowledge(event, () => { drawAll(); refreshList(); }));
  on("silence", "submit", (event) => silence(event, Number($("silence-seconds").value)));
  on("unsilence", "click", (event) => silence(event, 0));
  on("theme", "click", () => theme(true));
  for (const link of document.querySelectorAll(".home")) link.addEventListener("click", goHome);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
  addEventListener("resize", later(() => { drawList(); drawAll(); }, 100));
  addEventListener("hashchange", readNew);
  addEventListener("popstate", readNew);
  document.addEventListener("visibilitychange", follow);
  setInterval(tick, 1000);
}

readAddress();
makeRanges();
bind();
write($("zone"), "Times: " + zone());
$("search").value = state.search; $("sort").value = state.sort;
theme(false);
refreshList(true).then(() => { performance.mark("reprior-list"); });
show();
