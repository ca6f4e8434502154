// The alarms of a stream: what is open, who dealt with it, and silences.
import { now, state } from "./address.js";
import { moved } from "./home.js";
import { ask, at, post } from "./server.js";
import { $, clock, count, lasted, make, percent, say, when, write } from "./util.js";
import { view } from "./view.js";

function sentence(alarm) {
  if (alarm.kind === "stale") return `No samples have come since ${when(alarm.since)}. Check the model server that sends them. The alarm ends when samples come again.`;
  if (alarm.kind === "not label shift") return `Not label shift since sample ${count(alarm.sample)} (${when(alarm.raised)}). ${alarm.reason} ` +
    "Less than half of the correction is applied. Check the data, or send labels. The alarm ends when most of it is applied again.";
  const since = alarm.since ? when(alarm.since) : "sample " + count(alarm.since_sample);
  return `The class prior has left the reference since ${since}: ${moved(alarm.classes)}. ` +
    `The alarm was raised ${when(alarm.raised)}, at sample ${count(alarm.sample)}. ${alarm.sure || ""}`;
}

export const openAlarms = () => [view.live.alarm.open, view.live.alarm.not_label_shift, view.live.alarm.stale].filter((a) => a && !a.acknowledged);

export function drawAlarm() {
  const { open: shift, silence, watched, sure } = view.live.alarm, raised = openAlarms();
  $("alarm").hidden = !raised.length;
  write($("alarm-text"), raised.map(sentence).join(" "));
  $("next-label").hidden = !shift; // after silence nothing is to be tested anew
  write($("watched"), watched ? sure : "No alarm watches the class prior of this stream. It needs held-out samples, or the option exact.");
  write($("silence-text"), silence ? `Messages are held back until ${clock(silence.until)} (${silence.by}${silence.note ? ": " + silence.note : ""}).` : "");
  $("unsilence").hidden = !silence;
}

export async function loadAlarms() {
  const name = state.stream;
  const { alarms } = await ask(at(name, "/alarms")).catch(() => ({ alarms: [] }));
  if (name !== state.stream) return;
  view.alarms = alarms;
  if (view.about && view.about.version > 1) {
    const { versions } = await ask(at(name, "/versions")).catch(() => ({ versions: [] }));
    if (name !== state.stream) return;
    view.versions = versions;
  }
  $("alarms").hidden = !alarms.length;
  $("alarms").tBodies[0].replaceChildren(...alarms.map((a) => {
    const row = make("tr"), found = { stale: "no samples", "not label shift": `not label shift: ${percent(a.share)} of the correction is applied` }[a.kind];
    row.append(make("td", when(a.raised)), make("td", a.since ? when(a.since) : "sample " + count(a.since_sample)),
      make("td", found || moved(a.classes)),
      make("td", a.acknowledged ? `acknowledged by ${a.by}, ${when(a.acknowledged)}` : a.resolved ? `over since ${when(a.resolved)}` : "open"), make("td", a.note || ""));
    return row;
  }));
}

async function tried(error, work) {
  try { await work(); write($(error), ""); } catch (problem) { write($(error), problem.message); }
}

export const acknowledge = (event, done) => {
  event.preventDefault();
  tried("alarm-error", async () => {
    for (const alarm of openAlarms()) {
      const told = await post(at(state.stream, `/alarms/${alarm.id}/acknowledge`), { by: $("by").value, note: $("note").value, next: alarm.kind === "shift" ? $("next").value : "restart" });
      if (alarm.kind === "shift") view.live.alarm.open = null; else view.live.alarm[alarm.kind.replaceAll(" ", "_")] = { ...alarm, acknowledged: told.acknowledged };
    }
    $("note").value = "";
    say("The alarm is acknowledged.");
    drawAlarm();
    await loadAlarms();
    done();
  });
};

export const silence = (event, seconds) => {
  event.preventDefault();
  tried("silence-error", async () => {
    const told = await post(at(state.stream, "/silence"), { by: $("silence-by").value || "the page", note: $("silence-note").value, seconds });
    view.live.alarm.silence = told.silence;
    drawAlarm();
    say(told.silence ? `Messages are held back for ${lasted(told.silence.until - now() + 1)}.` : "Messages are sent again.");
  });
};
