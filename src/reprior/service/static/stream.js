// One stream: its facts, its charts, and what is said of it.
import { ago, fixed, now, setNow, span, state, writeAddress } from "./address.js";
import { drawAlarm, loadAlarms, openAlarms } from "./alarms.js";
import { drawLines, drawRate } from "./charts.js";
import { drawHeat, forgetHeat } from "./heat.js";
import { showHome } from "./home.js";
import { ask, at, connected } from "./server.js";
import { drawNow } from "./shares.js";
import { $, count, make, percent, rate, say, when, write } from "./util.js";
import { append, forget, loadPast, POINTS, view } from "./view.js";

window.repriorTimings = []; // milliseconds of each update, for whoever measures

export async function showStream() {
  const name = state.stream;
  forget(); forgetHeat();
  $("stream").hidden = true;
  if (!name) return;
  try {
    const about = await ask(at(name, "?diagnosis=0"));
    if (name !== state.stream) return;
    setNow(about.now);
    view.about = about;
    view.live = { ...about, lower: about.interval.lower, upper: about.interval.upper };
    if (!(await loadPast())) return;
  } catch (error) {
    if (name !== state.stream) return;
    forget();
    if (error.status === 404 || error.status === 409) { say(error.message); write($("gone"), error.message); state.stream = null; writeAddress(); showHome(); }
    else { connected(false); setTimeout(() => { if (name === state.stream && !view.about) showStream(); }, 2000); }
    return;
  }
  document.title = name + " · reprior";
  write($("name"), name); write($("gone"), "");
  $("classes").value = state.classes;
  for (const id of ["alarm-error", "silence-error"]) write($(id), ""); // what stood there was about another stream
  $("alarms").hidden = true;
  $("diagnosis").replaceChildren(make("li", "The last samples are being looked at."));
  $("stream").hidden = false;
  drawAll(); loadAlarms().then(drawAll); loadDiagnosis();
  say(`${name}: ${count(view.about.n)} samples, ${view.about.classes.length} classes`);
}

export const refreshPast = () => loadPast().then((mine) => { if (mine) drawAll(); }, () => connected(false));

// Called with each event; drawn once per frame.
export function heardUpdate(told) {
  if (!view.pending) requestAnimationFrame(update);
  view.pending = told;
}

function update() {
  const told = view.pending, begun = performance.now();
  view.pending = null;
  if (!told || !view.past || !view.about) return;
  if (told.version !== view.about.version) { showStream(); return; } // its estimate starts again
  const before = openAlarms().map((a) => a.id).join();
  view.live = told;
  setNow(told.t);
  if (told.n) append(told);
  drawAll();
  const raised = openAlarms().map((a) => a.id).join();
  if (raised !== before) { loadAlarms(); if (raised) say("Alarm on " + state.stream); }
  queueMicrotask(() => queueMicrotask(() => {
    repriorTimings.push(performance.now() - begun);
    if (repriorTimings.length > 1000) repriorTimings.shift();
  }));
  const empty = view.t.length && !view.chosen.length && !state.classes; // the first samples in the range
  if ((empty || begun - view.asked > 30000) && performance.now() - view.asked > 500 && !document.hidden && !fixed()) refreshPast();
  if (begun - view.slow > 10000) loadDiagnosis();
}

// Time passes although nothing comes: the charts go on, so that a stream that has stopped does not look alive.
let ticked = 0;
export function tick() {
  const [from, to] = span();
  if (!view.past || document.hidden || fixed() || now() - ticked < Math.max(1, (to - from) / POINTS)) return;
  ticked = now();
  drawFacts(); drawLines(); drawHeat(); drawRate();
}

export function drawAll() {
  if (!view.past || !view.about) return;
  drawFacts(); drawActs(); drawAlarm(); drawLines(); drawHeat(); drawNow(); drawRate();
}

function drawFacts() {
  const told = view.live, seen = told.n ? `${when(told.seen)} (${ago(told.seen)})` : "never";
  const facts = [["samples", count(told.n)], ["per second", rate(told.rate)], ["moved", percent(told.shift)], ["labels", count(told.labels)],
    ["classes", count(view.about.classes.length)], ["method", view.about.method], ["model version", count(view.about.version)], ["last samples", seen]];
  const holder = $("facts");
  facts.forEach(([what, text], k) => {
    let pair = holder.children[k];
    if (!pair) { pair = make("div"); pair.append(make("dt", what), make("dd")); holder.append(pair); }
    write(pair.children[1], text);
  });
}

// How much of the correction is applied, and why.
function drawActs() {
  const { share, reason } = view.live.acts, whole = Math.round(100 * share) + " %", on = share >= 0.5;
  write($("acts"), on ? `Correcting: ${whole}. ${reason}` : `Not correcting for label shift: ${whole} is applied. ${reason}`);
  $("acts").classList.toggle("red", !on);
}

async function loadDiagnosis() {
  const name = state.stream;
  view.slow = performance.now();
  const told = await ask(at(name)).catch(() => null);
  if (!told || name !== state.stream || !view.about) return;
  const found = told.diagnosis;
  const items = found ? [...found.sentences, `From the last ${count(found.rows)} samples.`] : ["No samples have come since the server started."];
  if ([...$("diagnosis").children].map((x) => x.textContent).join("\n") !== items.join("\n"))
    $("diagnosis").replaceChildren(...items.map((text) => make("li", text)));
}
