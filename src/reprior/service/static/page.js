"use strict";
// The page asks the server for what it shows and no more: a window of the list, a few classes over time, one heat map.
// Names are other people's text: they only ever become text nodes.

const $ = (id) => document.getElementById(id);
const ROW = 48, CLASS_ROW = 26, PAGE = 50, POINTS = 300, LINES = 8;
const RANGES = [["5m", "5 min", 300], ["1h", "1 h", 3600], ["12h", "12 h", 43200], ["7d", "7 d", 604800], ["1y", "1 year", 31622400]];
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7d00", "#7570b3"];
const state = { stream: null, range: "5m", classes: "", search: "", sort: "name" };
window.repriorTimings = []; // milliseconds of each update, for whoever measures

function make(tag, text, cls) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (cls) element.className = cls;
  return element;
}
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (x) => (x >= 0.1 ? (100 * x).toFixed(1) : x >= 0.001 ? (100 * x).toFixed(2) : (100 * x).toPrecision(2)) + " %";
const count = (n) => Math.round(n).toLocaleString("en");
const rateText = (x) => (x >= 10 ? count(x) : x.toFixed(1)) + "/s";
const when = (t) => (t ? new Date(t * 1000).toLocaleString() : "–");
const seconds = () => RANGES.find((r) => r[0] === state.range)[2];

// asking the server

let token = sessionStorage.getItem("reprior-token");
const headers = () => (token ? { Authorization: "Bearer " + token } : {});

function askToken() {
  const dialog = $("ask");
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    token = $("token").value; sessionStorage.setItem("reprior-token", token); done();
  }, { once: true }));
}

async function ask(path, options = {}) {
  for (;;) {
    const answer = await fetch(path, { ...options, headers: { ...headers(), ...(options.headers || {}) } });
    if (answer.status === 401) { await askToken(); continue; }
    const body = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(body.error), { status: answer.status });
    return body;
  }
}

// Server-sent events over fetch, because EventSource cannot carry a token. A browser opens six connections to a server
// for all its tabs together: a page holds one of them, and none while nobody can see it.
let listening = null;
function listen() {
  if (listening) listening.abort();
  listening = null;
  if (document.hidden) return;
  const control = listening = new AbortController(), name = view.about && state.stream;
  (async () => {
    while (!control.signal.aborted) {
      try {
        const answer = await fetch("/events" + (name ? "?stream=" + encodeURIComponent(name) : ""), { headers: headers(), signal: control.signal });
        if (answer.status === 401) { await askToken(); continue; }
        if (answer.ok) {
          const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
          let text = "";
          for (;;) {
            const { value, done } = await reader.read();
            if (done) break;
            text += value;
            const parts = text.split("\n\n");
            text = parts.pop();
            for (const part of parts) {
              const kind = /^event: (.*)$/m.exec(part), data = /^data: (.*)$/m.exec(part);
              if (kind && data && !control.signal.aborted) heard[kind[1]](JSON.parse(data[1]));
            }
          }
        } else if (answer.status === 404) return heard.deleted();
      } catch (error) { if (control.signal.aborted) return; }
      connected(false);
      await new Promise((done) => setTimeout(done, 2000));
    }
  })();
}

const heard = {
  server(told) {
    connected(true, told.trouble);
    const text = `${count(told.streams)} ${told.streams === 1 ? "stream" : "streams"}, ${count(told.alarms)} ${told.alarms === 1 ? "alarm" : "alarms"}`;
    if ($("overview").textContent !== text) $("overview").textContent = text;
    if (told.version !== list.version) { list.version = told.version; refreshList(); }
  },
  update(told) {
    if (!view.pending) requestAnimationFrame(update);
    view.pending = told;
  },
  deleted() {
    say(`The stream ${state.stream} was deleted.`);
    state.stream = null; writeAddress(); show(); refreshList();
  },
};

let lost = false;
function connected(yes, trouble) {
  lost = !yes;
  const text = lost ? "The server does not answer. Trying again." : trouble ? "Storage: " + trouble : "";
  $("trouble").hidden = !text;
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
}

// the address bar holds what is shown

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.stream = given.get("stream");
  state.range = RANGES.some((r) => r[0] === given.get("range")) ? given.get("range") : "5m";
  for (const key of ["classes", "search"]) state[key] = given.get(key) || "";
  state.sort = given.get("sort") || "name";
}
function writeAddress(push) {
  const told = new URLSearchParams();
  for (const [key, usual] of [["stream", null], ["range", "5m"], ["classes", ""], ["search", ""], ["sort", "name"]])
    if (state[key] !== usual && state[key] !== null) told.set(key, state[key]);
  const hash = "#" + told;
  if (hash !== (location.hash || "#")) history[push ? "pushState" : "replaceState"](null, "", hash);
}

// the list: a window of rows over as many as there are

const list = { total: 0, at: 0, pages: new Map(), rows: [], version: -1 };

async function loadPage(number) {
  const query = new URLSearchParams({ offset: number * PAGE, limit: PAGE, search: state.search, sort: state.sort });
  const wanted = state.search + "\n" + state.sort;
  const found = await ask("/streams?" + query);
  if (wanted !== state.search + "\n" + state.sort) return;
  list.total = found.total;
  list.pages.set(number, found.streams);
  $("count").textContent = `${count(found.total)} ${found.total === 1 ? "stream" : "streams"}` +
    (state.search ? " found" : "") + (found.alarms ? `, ${count(found.alarms)} with an alarm` : "");
}

async function refreshList(reset) {
  const box = $("list");
  if (reset) { list.pages.clear(); box.scrollTop = 0; list.at = 0; }
  const first = Math.floor(box.scrollTop / ROW / PAGE), last = Math.floor((box.scrollTop + box.clientHeight) / ROW / PAGE);
  const wanted = [];
  for (let n = first; n <= last; n++) wanted.push(loadPage(n));
  for (const n of list.pages.keys()) if (n < first - 2 || n > last + 2) list.pages.delete(n);
  try { await Promise.all(wanted); } catch (error) { connected(false); }
  drawList();
  showEmpty();
}

const streamAt = (i) => (list.pages.get(Math.floor(i / PAGE)) || [])[i % PAGE];

function drawList() {
  const box = $("list"), holder = $("rows");
  holder.style.height = list.total * ROW + "px";
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 2);
  const last = Math.min(list.total, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 2);
  while (list.rows.length < last - first) {
    const row = make("div", null, "row");
    row.setAttribute("role", "option");
    row.append(make("b"), make("canvas"), make("span"));
    row.addEventListener("click", () => { list.at = row.index; open(row.stream); });
    list.rows.push(row); holder.append(row);
  }
  list.rows.forEach((row, k) => {
    const index = first + k, stream = index < last ? streamAt(index) : null;
    row.hidden = !stream;
    if (!stream) return;
    row.index = index; row.stream = stream.name; row.id = "row-" + index;
    row.style.top = index * ROW + "px";
    row.classList.toggle("bad", !!stream.alarm);
    row.classList.toggle("at", index === list.at && document.activeElement === box);
    row.setAttribute("aria-selected", stream.name === state.stream);
    row.setAttribute("aria-setsize", list.total);
    row.setAttribute("aria-posinset", index + 1);
    row.children[0].textContent = stream.name;
    row.children[0].title = stream.name;
    row.children[2].textContent = (stream.alarm ? "alarm · " : "") + `moved ${percent(stream.shift)} · ${rateText(stream.rate)} · ${count(stream.n)}`;
    row.children[2].title = row.children[2].textContent;
    spark(row.children[1], stream.spark, stream.alarm);
  });
  box.setAttribute("aria-activedescendant", list.total ? "row-" + list.at : "");
}

function spark(canvas, values, alarm) {
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

function listKey(event) {
  const jump = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Enter" || event.key === " ") { const s = streamAt(list.at); if (s) open(s.name); event.preventDefault(); return; }
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

function showEmpty() {
  const empty = list.total === 0 && !state.search;
  $("none").hidden = !(empty && !state.stream);
  $("choose").hidden = empty || !!state.stream;
  $("how").textContent = `curl -X PUT ${location.origin}/streams/shop -H 'Content-Type: application/json' \\\n` +
    `  -d '{"source": {"cat": 700, "dog": 300}}'`;
}

// one stream

const view = { about: null, past: null, live: null, lines: null, rate: null, cells: null, chosen: [], order: [],
  shown: [], rows: [], cursor: null, asked: 0, drawn: 0, pending: null, slow: 0 };

function open(name) {
  if (name === state.stream && view.about) return;
  state.stream = name; writeAddress(true); show();
}

async function show() {
  if (listening) listening.abort(); // of what was shown before nothing more is heard
  view.about = view.past = view.live = view.pending = null; view.cursor = null;
  $("stream").hidden = true;
  showEmpty(); drawList();
  const name = state.stream;
  if (!name) { document.title = "reprior"; listen(); return; }
  try {
    const about = await ask(`/streams/${encodeURIComponent(name)}?diagnosis=0`);
    if (name !== state.stream) return;
    view.about = about;
    view.live = { ...about, lower: about.interval.lower, upper: about.interval.upper };
    await refreshPast();
    if (name !== state.stream) return;
  } catch (error) {
    if (name !== state.stream) return;
    view.about = null;
    if (error.status === 404) { say(error.message); state.stream = null; writeAddress(); showEmpty(); listen(); }
    else { connected(false); setTimeout(() => { if (name === state.stream && !view.about) show(); }, 2000); }
    return;
  }
  document.title = name + " · reprior";
  $("name").textContent = name;
  $("classes").value = state.classes;
  for (const id of ["heat-text", "alarm-error"]) $(id).textContent = ""; // what stood there was about another stream
  $("alarms").hidden = true;
  $("diagnosis").replaceChildren(make("li", "The last samples are being looked at."));
  $("stream").hidden = false;
  drawAll(); loadAlarms(); loadDiagnosis(); listen();
  say(`${name}: ${count(view.about.n)} samples, ${view.about.classes.length} classes`);
}

function matching() {
  const text = state.classes.toLowerCase(), names = view.about.classes;
  if (!text) return names.map((_, k) => k);
  const found = [];
  for (let k = 0; k < names.length; k++) if (names[k].toLowerCase().includes(text)) found.push(k);
  return found;
}

async function refreshPast() {
  const name = state.stream, to = Math.max(Date.now() / 1000, view.live.t || view.about.now);
  const query = new URLSearchParams({ from: Math.max(0, to - seconds()), to: to + 1, points: POINTS, heat: 1, top: LINES });
  view.shown = matching();
  if (state.classes) {
    const now = view.live.prior, source = view.about.source;
    const some = [...view.shown].sort((a, b) => Math.abs(now[b] - source[b]) - Math.abs(now[a] - source[a])).slice(0, LINES);
    if (some.length) query.set("classes", some.join(",")); else query.set("top", 0);
  }
  view.asked = performance.now();
  const past = await ask(`/streams/${encodeURIComponent(name)}/history?` + query);
  if (name !== state.stream) return;
  view.past = past; view.chosen = past.classes;
  const raw = atob(past.heat.cells), k = view.about.classes.length;
  view.cells = past.t.map((_, i) => Int8Array.from({ length: k }, (_, c) => raw.charCodeAt(i * k + c)));
  view.columns = [past.t.slice(), past.n.slice()];
  view.series = view.chosen.map((_, c) => [0, 1, 2].map((which) =>
    past.t.map((_, i) => [past.upper, past.prior, past.lower][which][i][c])));
  view.fixed = past.t.length; // points behind this one came live
}

// put the newest state at the end; within one step of the time axis it replaces the one before
function append(told) {
  const [t, n] = view.columns, step = seconds() / POINTS, last = t.length - 1;
  const replaces = last >= 0 && told.seen <= t[last] + (last > 0 ? Math.max(0, step - (t[last] - t[last - 1])) : 0);
  const k = view.about.classes.length, source = view.about.source, range = view.past.heat.range, column = new Int8Array(k);
  for (let c = 0; c < k; c++) {
    const x = Math.log2(Math.max(told.prior[c], 1e-12) / source[c]) / range;
    column[c] = Math.round(127 * Math.max(-1, Math.min(1, x)));
  }
  const at = replaces ? last : last + 1;
  t[at] = Math.max(told.seen, at ? t[at - 1] : 0); n[at] = told.n; view.cells[at] = column;
  view.chosen.forEach((c, s) => {
    view.series[s][0][at] = told.upper[c]; view.series[s][1][at] = told.prior[c]; view.series[s][2][at] = told.lower[c];
  });
  const oldest = told.t - seconds();
  let drop = 0;
  while (drop < t.length - 2 && t[drop] < oldest) drop++;
  if (drop) for (const array of [t, n, view.cells, ...view.series.flat()]) array.splice(0, drop);
}

function update() {
  const told = view.pending, begun = performance.now();
  view.pending = null;
  if (!told || !view.past || !view.about) return;
  const alarmed = (view.live.alarm && view.live.alarm.open && view.live.alarm.open.id) || 0;
  view.live = told;
  if (told.n) append(told);
  drawAll();
  const raised = told.alarm.open ? told.alarm.open.id : 0;
  if (raised !== alarmed) { loadAlarms(); if (raised) say("Alarm on " + state.stream); }
  queueMicrotask(() => queueMicrotask(() => {
    repriorTimings.push(performance.now() - begun);
    if (repriorTimings.length > 1000) repriorTimings.shift();
  }));
  if (begun - view.asked > 30000 && !document.hidden) refreshPast().then(drawAll, () => connected(false));
  if (begun - view.slow > 10000) loadDiagnosis();
}

function drawAll() {
  if (!view.past || !view.about) return;
  drawFacts(); drawAlarm(); drawLines(); drawHeat(); drawNow(); drawRate();
}

function drawFacts() {
  const now = view.live, facts = [["samples", count(now.n)], ["a second", rateText(now.rate).replace("/s", "")], ["moved", percent(now.shift)],
    ["labels", count(now.labels)], ["classes", count(view.about.classes.length)], ["method", view.about.method], ["heard of", when(now.n ? now.seen : null)]];
  const holder = $("facts");
  facts.forEach(([what, text], k) => {
    let pair = holder.children[k];
    if (!pair) { pair = make("div"); pair.append(make("dt", what), make("dd")); holder.append(pair); }
    if (pair.children[1].textContent !== text) pair.children[1].textContent = text;
  });
}

function alarmSentence(raised) {
  const moved = raised.classes.map((c) => `${c.class} (${percent(c.source)} → ${percent(c.now)})`).join(", ");
  return `The class mix has left the reference since ${raised.since ? when(raised.since) : "sample " + count(raised.since_sample)}: ` +
    `${moved}. Raised ${when(raised.raised)}, at sample ${count(raised.sample)}. ${raised.sure || ""}`;
}

function drawAlarm() {
  const raised = view.live.alarm.open;
  $("alarm").hidden = !raised;
  if (raised) { const text = alarmSentence(raised); if ($("alarm-text").textContent !== text) $("alarm-text").textContent = text; }
  $("watched").textContent = view.live.alarm.watched ? view.live.alarm.sure :
    "No alarm watches this stream. It needs held-out rows, or the option exact.";
}

function axes(format) {
  const stroke = css("--soft"), grid = { stroke: css("--line"), width: 1 };
  return [{ stroke, grid, ticks: grid }, { stroke, grid, ticks: grid, size: 62, values: (_, ticks) => ticks.map(format) }];
}

function timeSpan(_, low, high) {
  if (low === null || low === undefined) return [view.past.from, view.past.to];
  return high > low ? [low, high] : [low - 1, low + 1];
}

function chart(which, key, holder, height, build, data) {
  const width = Math.max(200, holder.clientWidth);
  if (!view[which] || view[which].key !== key) {
    if (view[which]) view[which].plot.destroy();
    holder.replaceChildren();
    view[which] = { key, plot: new uPlot({ width, height, legend: { show: false }, cursor: { points: { size: 6 } }, ...build() }, data, holder) };
  } else {
    if (view[which].plot.width !== width) view[which].plot.setSize({ width, height });
    view[which].plot.setData(data);
  }
}

function drawLines() {
  const theme = document.documentElement.dataset.theme, names = view.chosen.map((c) => view.about.classes[c]);
  const key = [state.stream, theme, view.chosen].join("|");
  chart("lines", key, $("lines"), 260, () => {
    const series = [{}], bands = [];
    view.chosen.forEach((_, k) => {
      const colour = COLOURS[k % COLOURS.length], at = series.length;
      series.push({ width: 0, points: { show: false } }, { stroke: colour, width: 2, points: { show: false } }, { width: 0, points: { show: false } });
      bands.push({ series: [at, at + 2], fill: colour + "2e" });
    });
    return { series, bands, axes: axes(percent), scales: { y: { range: (_, low, high) => [0, Math.min(1, Math.max(0.01, (high || 0.01) * 1.05))] },
      x: { time: true, range: timeSpan } } };
  }, [view.columns[0], ...view.series.flat()]);
  const legend = $("legend"), told = names.length ? names.map((name, k) => `${name}: ${percent(view.live.prior[view.chosen[k]])}`) : [];
  while (legend.children.length > told.length) legend.lastChild.remove();
  told.forEach((text, k) => {
    let item = legend.children[k];
    if (!item) { item = make("li"); item.append(make("i"), document.createTextNode("")); legend.append(item); }
    item.firstChild.style.background = COLOURS[k % COLOURS.length];
    if (item.lastChild.data !== text) item.lastChild.data = text;
  });
  $("lines-hint").textContent = !view.columns[0].length ? "No samples in this range." :
    state.classes && !view.shown.length ? "No class has this in its name." :
    view.shown.length > names.length ? `The ${names.length} of ${count(view.shown.length)} classes that moved most, with 95 % intervals.` : "With 95 % intervals.";
}

function drawRate() {
  const [t, n] = view.columns, rates = t.map((_, i) => (i ? Math.max(0, n[i] - n[i - 1]) / Math.max(0.05, t[i] - t[i - 1]) : null));
  if (rates.length > 1) rates[0] = rates[1];
  chart("rate", [state.stream, document.documentElement.dataset.theme].join("|"), $("rate"), 120, () => ({
    series: [{}, { stroke: css("--blue"), fill: css("--blue") + "22", width: 1.5, points: { show: false } }], axes: axes((x) => count(x)),
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high || 1) * 1.1)] }, x: { time: true, range: timeSpan } },
  }), [t, rates]);
}

let ramp = null, rampTheme = "";
function colours() {
  const theme = document.documentElement.dataset.theme;
  if (theme === rampTheme) return ramp;
  const middle = theme === "dark" ? [26, 32, 40] : [255, 255, 255], less = [59, 127, 196], more = [217, 101, 43];
  ramp = new Uint32Array(256);
  for (let v = -128; v < 128; v++) {
    const f = Math.sqrt(Math.min(1, Math.abs(v) / 127)), end = v < 0 ? less : more;
    const [r, g, b] = middle.map((m, i) => Math.round(m + f * (end[i] - m)));
    ramp[v & 255] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  rampTheme = theme;
  return ramp;
}

// Each column of the picture is a moment of time, whole pixels wide; the points nearest before it fill it.
const small = document.createElement("canvas");
function drawHeat() {
  const canvas = $("heat"), shown = view.shown, t = view.columns[0], ratio = devicePixelRatio || 1;
  const height = Math.max(48, Math.min(460, shown.length * (shown.length <= 12 ? 24 : 12))), width = Math.max(200, canvas.clientWidth);
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (!t.length || !shown.length) return;
  const steps = Math.min(POINTS, Math.max(1, t.length)), begin = t[0], span = Math.max(1e-9, t[t.length - 1] - begin);
  small.width = steps; small.height = shown.length;
  const image = new ImageData(steps, shown.length), pixels = new Uint32Array(image.data.buffer), table = colours();
  view.heatAt = new Array(steps);
  for (let x = 0, i = 0; x < steps; x++) {
    const moment = begin + (span * x) / Math.max(1, steps - 1) + 1e-6;
    while (i < t.length - 1 && t[i + 1] <= moment) i++;
    view.heatAt[x] = i;
    const column = view.cells[i];
    for (let y = 0, p = x; y < shown.length; y++, p += steps) pixels[p] = table[column[shown[y]] & 255];
  }
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = shown.length > canvas.height;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (view.cursor) {
    const [x, y] = view.cursor, w = canvas.width / steps, h = canvas.height / shown.length;
    pen.strokeStyle = css("--ink"); pen.lineWidth = 2 * ratio;
    pen.strokeRect(x * w, y * h, Math.max(w, 6), Math.max(h, 6));
  }
}

function tellHeat() {
  if (!view.cursor || !view.heatAt) return;
  const [x, y] = view.cursor, i = view.heatAt[Math.min(x, view.heatAt.length - 1)], c = view.shown[y];
  if (c === undefined || i === undefined) return;
  const times = 2 ** ((view.cells[i][c] / 127) * view.past.heat.range);
  $("heat-text").textContent = `${view.about.classes[c]}, ${when(view.columns[0][i])}: ${times >= 1 ? times.toFixed(times < 10 ? 2 : 0) + " times its source share" :
    "1/" + (1 / times).toFixed(1 / times < 10 ? 2 : 0) + " of its source share"}`;
}
function heatPoint(event) {
  const box = $("heat").getBoundingClientRect();
  if (!view.heatAt || !view.shown.length) return;
  view.cursor = [Math.floor(((event.clientX - box.left) / box.width) * view.heatAt.length), Math.floor(((event.clientY - box.top) / box.height) * view.shown.length)]
    .map((v, d) => Math.max(0, Math.min(v, (d ? view.shown.length : view.heatAt.length) - 1)));
  drawHeat(); tellHeat();
}
function heatKey(event) {
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] }[event.key];
  if (!move || !view.heatAt) return;
  event.preventDefault();
  const [x, y] = view.cursor || [view.heatAt.length - 1, 0];
  view.cursor = [Math.max(0, Math.min(view.heatAt.length - 1, x + move[0])), Math.max(0, Math.min(view.shown.length - 1, y + move[1]))];
  drawHeat(); tellHeat();
}

// source against now: a window of rows over all classes, the largest movers first

function orderNow() {
  const now = view.live.prior, source = view.about.source;
  view.order = [...view.shown].sort((a, b) => Math.abs(now[b] - source[b]) - Math.abs(now[a] - source[a]));
  view.ordered = performance.now();
}
function drawNow() {
  const box = $("now"), now = view.live, source = view.about.source;
  // rows that change places ten times a second cannot be read
  if (!view.order.length || view.order.length !== view.shown.length || view.orderKey !== state.stream + state.classes || performance.now() - view.ordered > 3000) {
    orderNow(); view.orderKey = state.stream + state.classes;
    let high = 0.01;
    for (const c of view.order) high = Math.max(high, now.upper[c], source[c]);
    view.high = high;
  }
  box.style.height = Math.min(416, Math.max(30, view.order.length * CLASS_ROW + 2)) + "px";
  $("now-rows").style.height = view.order.length * CLASS_ROW + "px";
  const first = Math.max(0, Math.floor(box.scrollTop / CLASS_ROW) - 1), last = Math.min(view.order.length, Math.ceil((box.scrollTop + 416) / CLASS_ROW) + 1);
  while (view.rows.length < last - first) {
    const row = make("div", null, "cls");
    row.setAttribute("role", "row");
    const bar = make("div", null, "bar");
    bar.append(make("i", null, "band"), make("i", null, "was"), make("i", null, "is"));
    row.append(make("span"), bar, make("span"), make("span"), make("span"));
    for (const cell of row.children) cell.setAttribute("role", "cell");
    bar.setAttribute("aria-hidden", "true");
    view.rows.push(row); $("now-rows").append(row);
  }
  const put = (element, name, value) => { if (element.style[name] !== value) element.style[name] = value; };
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  view.rows.forEach((row, k) => {
    const c = view.order[first + k];
    row.hidden = first + k >= last;
    if (row.hidden) return;
    put(row, "top", (first + k) * CLASS_ROW + "px");
    const at = (x) => Math.min(100, (100 * x) / view.high).toFixed(2) + "%", [band, was, is] = row.children[1].children;
    put(band, "left", at(now.lower[c])); put(band, "width", Math.max(0.2, Math.min(100, (100 * (now.upper[c] - now.lower[c])) / view.high)).toFixed(2) + "%");
    put(was, "left", at(source[c])); put(is, "left", at(now.prior[c]));
    write(row.children[0], view.about.classes[c]); row.children[0].title = view.about.classes[c];
    write(row.children[2], percent(source[c])); write(row.children[3], percent(now.prior[c]));
    write(row.children[4], `${percent(now.lower[c]).replace(" %", "")}–${percent(now.upper[c])}`);
    row.children[2].setAttribute("aria-label", "source " + percent(source[c])); row.children[3].setAttribute("aria-label", "now " + percent(now.prior[c]));
  });
}

async function loadAlarms() {
  const name = state.stream;
  const { alarms } = await ask(`/streams/${encodeURIComponent(name)}/alarms`).catch(() => ({ alarms: [] }));
  if (name !== state.stream) return;
  $("alarms").hidden = !alarms.length;
  $("alarms").tBodies[0].replaceChildren(...alarms.map((a) => {
    const row = make("tr");
    row.append(make("td", when(a.raised)), make("td", a.since ? when(a.since) : "sample " + count(a.since_sample)),
      make("td", a.classes.map((c) => `${c.class} ${percent(c.source)} → ${percent(c.now)}`).join(", ")),
      make("td", a.acknowledged ? `${a.by}, ${when(a.acknowledged)}` : "open"), make("td", a.note || ""));
    return row;
  }));
}

async function loadDiagnosis() {
  const name = state.stream;
  view.slow = performance.now();
  const told = await ask(`/streams/${encodeURIComponent(name)}`).catch(() => null);
  if (!told || name !== state.stream) return;
  const found = told.diagnosis, sentences = found ? found.sentences : ["No samples have come since the server started."];
  const items = found ? [...sentences, `From the last ${count(found.rows)} samples.`] : sentences;
  if ([...$("diagnosis").children].map((x) => x.textContent).join("\n") !== items.join("\n"))
    $("diagnosis").replaceChildren(...items.map((text) => make("li", text)));
}

async function acknowledge(event) {
  event.preventDefault();
  const raised = view.live.alarm.open;
  if (!raised) return;
  const body = JSON.stringify({ by: $("by").value, note: $("note").value, next: $("next").value });
  try {
    await ask(`/streams/${encodeURIComponent(state.stream)}/alarms/${raised.id}/acknowledge`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
    $("alarm-error").textContent = ""; $("note").value = "";
    view.live.alarm.open = null; drawAlarm(); loadAlarms(); refreshList(); say("The alarm is acknowledged.");
  } catch (error) { $("alarm-error").textContent = error.message; }
}

const say = (text) => { $("said").textContent = text; };

function theme(next) {
  const kinds = ["auto", "light", "dark"];
  let kind = localStorage.getItem("reprior-theme") || "auto";
  if (next) { kind = kinds[(kinds.indexOf(kind) + 1) % 3]; localStorage.setItem("reprior-theme", kind); }
  const dark = kind === "dark" || (kind === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = "Theme: " + kind;
  drawList(); drawAll();
}

function later(work, wait) { let timer = 0; return (...args) => { clearTimeout(timer); timer = setTimeout(() => work(...args), wait); }; }

function start() {
  readAddress();
  for (const [key, text] of RANGES) {
    const label = make("label"), input = make("input");
    input.type = "radio"; input.name = "range"; input.value = key; input.checked = key === state.range;
    input.addEventListener("change", () => { state.range = key; writeAddress(); if (view.about) refreshPast().then(drawAll, () => connected(false)); });
    label.append(input, make("span", text)); $("ranges").append(label);
  }
  $("search").value = state.search; $("sort").value = state.sort;
  $("search").addEventListener("input", later(() => { state.search = $("search").value; writeAddress(); refreshList(true); }, 120));
  $("sort").addEventListener("change", () => { state.sort = $("sort").value; writeAddress(); refreshList(true); });
  $("classes").addEventListener("input", later(() => { state.classes = $("classes").value; view.cursor = null; writeAddress(); if (view.about) refreshPast().then(drawAll, () => connected(false)); }, 120));
  const box = $("list");
  const fill = later(() => refreshList(), 60);
  box.addEventListener("scroll", () => { drawList(); fill(); });
  box.addEventListener("keydown", listKey); box.addEventListener("focus", drawList); box.addEventListener("blur", drawList);
  $("now").addEventListener("scroll", () => { if (view.past) drawNow(); });
  $("heat").addEventListener("mousemove", heatPoint); $("heat").addEventListener("keydown", heatKey);
  $("heat").addEventListener("mouseleave", () => { view.cursor = null; $("heat-text").textContent = ""; drawAll(); });
  $("acknowledge").addEventListener("submit", acknowledge);
  $("theme").addEventListener("click", () => theme(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
  addEventListener("resize", later(() => { drawList(); drawAll(); }, 100));
  addEventListener("hashchange", () => { readAddress(); $("search").value = state.search; $("sort").value = state.sort; for (const i of document.getElementsByName("range")) i.checked = i.value === state.range; refreshList(true); show(); });
  theme(false);
  refreshList(true).then(() => { performance.mark("reprior-list"); });
  document.addEventListener("visibilitychange", listen);
  show();
}
start();
