// The overview: open alarms first, then streams by how far they moved, stale streams, and the health of the server.
import { ago, now, setNow, writeAddress, state } from "./address.js";
import { spark } from "./list.js";
import { ask, connected } from "./server.js";
import { $, clock, count, lasted, later, make, percent, plural, rate, when, write } from "./util.js";

let found = null, asked = 0;

export function moved(classes) {
  return classes.map((c) => `${c.class} ${percent(c.source)} → ${percent(c.now)}`).join(", ");
}

export function what(alarm) {
  if (alarm.kind === "stale") return `No samples since ${clock(alarm.since)}`;
  if (alarm.kind === "not label shift") return `Not label shift: ${alarm.reason}`;
  return `Class prior moved: ${moved(alarm.classes)}`;
}

function linked(name) {
  const link = make("a", name);
  link.href = "#" + new URLSearchParams({ stream: name });
  return link;
}

function cell(content, cls) {
  const made = make("td", null, cls);
  made.append(content);
  return made;
}

function fill(id, rows) {
  $(id).hidden = !rows.length;
  $(id).querySelector("tbody").replaceChildren(...rows.map((cells) => {
    const row = make("tr");
    row.append(...cells);
    return row;
  }));
}

// What is wrong, one plain sentence each.
function problems(told) {
  const { health, webhook } = told, items = [];
  if (health.trouble) items.push(`No samples are stored: ${health.trouble}`);
  items.push(...health.problems);
  for (const { name, why } of told.unreadable) items.push(why || `The stream ${name} cannot be read.`);
  if (webhook.undelivered === null) items.push(`The messages for the webhook cannot be read: ${webhook.problem}`);
  else if (webhook.undelivered)
    items.push(`${plural(webhook.undelivered, "message", "messages")} about alarms did not reach the webhook${webhook.problem ? `: ${webhook.problem}` : ""}.`);
  if (health.refused.total) {
    const last = health.refused.last;
    items.push(`${plural(health.refused.total, "post was", "posts were")} refused since the server started. The last, ` +
      `${ago(last.at)}${last.stream ? ` for ${last.stream}` : ""}: ${last.error}`);
  }
  if (health.clock_ahead > 1) items.push(`The server's clock is ${lasted(health.clock_ahead)} ahead of the system's.`);
  return items;
}

function drawTiles(told) {
  const tiles = [["open alarms", told.alarms.total, told.alarms.total > 0], ["stale streams", told.stale.total, told.stale.total > 0],
    ["problems", problems(told).length, problems(told).length > 0],
    ["streams", told.streams, false], ["samples", told.samples, false], ["samples per second", rate(told.rate), false]];
  $("tiles").replaceChildren(...tiles.map(([text, value, bad]) => {
    const tile = make("div", null, bad ? "tile bad" : "tile");
    tile.append(make("dt", text), make("dd", typeof value === "number" ? count(value) : value));
    return tile;
  }));
}

function draw() {
  const told = found;
  drawTiles(told);
  const wrong = problems(told), { total: off, shown } = told.not_correcting;
  write($("correcting"), off ? `Not correcting for label shift: ${shown.join(", ")}${off > shown.length ? ` and ${count(off - shown.length)} more` : ""}. ` +
    `Correcting: ${count(told.streams - off)} of ${plural(told.streams, "stream", "streams")}.` : `Correcting: ${plural(told.streams, "stream", "streams")}.`);
  $("correcting").classList.toggle("red", off > 0);
  $("problems").hidden = !wrong.length;
  $("problem-list").replaceChildren(...wrong.map((text) => make("li", text)));
  write($("calm"), wrong.length ? "" : "The server stores samples and has nothing to complain of.");
  fill("open-alarms", told.alarms.shown.map((a) => [cell(linked(a.stream)), make("td", what(a)), make("td", when(a.raised)),
    make("td", a.silence ? `silenced by ${a.silence.by} until ${clock(a.silence.until)}` : "")]));
  write($("no-alarms"), told.alarms.total ? "" : "No alarm is open.");
  write($("more-alarms"), told.alarms.total > told.alarms.shown.length ? `The newest ${told.alarms.shown.length} of ${count(told.alarms.total)}.` : "");
  fill("moved", told.moved.map((s) => {
    const bar = make("span", null, "meter"), inside = make("i"), picture = make("canvas");
    inside.style.width = (100 * Math.min(1, s.shift)).toFixed(1) + "%";
    bar.append(inside);
    spark(picture, s.spark, s.alarm);
    const value = cell(bar, "amount");
    value.append(percent(s.shift));
    return [cell(linked(s.name)), value, cell(picture, "wide-only"), make("td", rate(s.rate)), make("td", ago(s.seen))];
  }));
  fill("stale", told.stale.shown.map((s) => [cell(linked(s.name)), make("td", when(s.seen)), make("td", lasted(now() - s.seen)),
    make("td", s.alarm ? "open" : "acknowledged")]));
  write($("no-stale"), told.stale.total ? "" : "Samples come from every stream that has sent any.");
  write($("more-stale"), told.stale.total > told.stale.shown.length ? `The longest silent ${told.stale.shown.length} of ${count(told.stale.total)}.` : "");
}

export async function refreshHome() {
  if (state.stream) return;
  asked = performance.now();
  try {
    found = await ask("overview");
    setNow(found.now);
  } catch { return connected(false); }
  if (!state.stream) showHome();
}

// The overview follows the server, but not faster than somebody can read.
const soon = later(refreshHome, 1500);
export const homeChanged = () => (performance.now() - asked > 1500 ? refreshHome() : soon());

export function showHome() {
  const home = !state.stream, empty = home && found && !found.streams && !found.unreadable.length;
  document.body.dataset.view = home ? "home" : "stream";
  $("none").hidden = !empty;
  $("home").hidden = !home || !found || empty;
  if (home) document.title = "reprior";
  if (home && found && !empty) draw();
  if (empty) {
    const base = location.href.split("#")[0];
    write($("how"), `curl -X PUT ${base}streams/shop -H 'Content-Type: application/json' \\\n  -d '{"source": {"cat": 700, "dog": 300}}'`);
  }
}

export function goHome(event) {
  if (event) event.preventDefault();
  state.stream = null;
  writeAddress(true);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
