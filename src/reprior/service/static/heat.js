// All classes against the source over time, as colours on a canvas with names and a time axis.
import { span } from "./address.js";
import { theme } from "./charts.js";
import { $, css, when, write } from "./util.js";
import { marks, POINTS, view } from "./view.js";

const GUTTER = 150, FOOT = 22, TALLEST = 460;
const heat = { cursor: null, at: [], ramp: null, theme: "" };
const small = document.createElement("canvas");

function ramp() {
  if (theme() === heat.theme) return heat.ramp;
  const middle = theme() === "dark" ? [26, 32, 40] : [255, 255, 255], less = [59, 127, 196], more = [217, 101, 43];
  heat.ramp = new Uint32Array(256);
  for (let v = -128; v < 128; v++) {
    const f = Math.sqrt(Math.min(1, Math.abs(v) / 127)), end = v < 0 ? less : more;
    const [r, g, b] = middle.map((m, i) => Math.round(m + f * (end[i] - m)));
    heat.ramp[v & 255] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  heat.theme = theme();
  return heat.ramp;
}

const gutter = () => Math.min(GUTTER, $("heat").clientWidth * 0.3);

// For each column of the picture the point that holds there, or -1 where nothing was heard of the stream.
function columns() {
  const { t } = view, [from, to] = span(), steps = POINTS, width = (to - from) / steps, found = new Array(steps).fill(-1);
  const gaps = t.slice(1).map((x, i) => x - t[i]).sort((a, b) => a - b), usual = gaps.length ? gaps[gaps.length >> 1] : width;
  const holds = Math.max(2 * width, 3 * usual);
  for (let x = 0, i = -1; x < steps; x++) {
    const end = from + width * (x + 1);
    while (i < t.length - 1 && t[i + 1] < end) i++;
    if (i >= 0 && end - width - t[i] <= (i < t.length - 1 ? Math.max(holds, 0) : width)) found[x] = i;
  }
  return found;
}

function drawCells(pen, left, width, height) {
  const { shown } = view, steps = heat.at.length, table = ramp();
  small.width = steps; small.height = shown.length;
  const image = new ImageData(steps, shown.length), pixels = new Uint32Array(image.data.buffer);
  for (let x = 0; x < steps; x++) {
    if (heat.at[x] < 0) continue;
    const column = view.cells[heat.at[x]];
    for (let y = 0, p = x; y < shown.length; y++, p += steps) pixels[p] = table[column[shown[y]] & 255];
  }
  small.getContext("2d").putImageData(image, 0, 0);
  pen.fillStyle = css("--side");
  pen.fillRect(left, 0, width, height);
  pen.imageSmoothingEnabled = shown.length > height;
  pen.drawImage(small, left, 0, width, height);
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(text.slice(0, end) + "…").width > width) end--;
  return text.slice(0, end) + "…";
}

function drawNames(pen, left, height) {
  const { shown } = view, row = height / shown.length, every = Math.max(1, Math.ceil(13 / row));
  pen.fillStyle = css("--ink"); pen.textAlign = "right"; pen.textBaseline = "middle"; pen.font = "12px system-ui, sans-serif";
  for (let y = Math.floor(every / 2); y < shown.length; y += every) pen.fillText(fitted(pen, view.about.classes[shown[y]], left - 8), left - 6, (y + 0.5) * row);
}

// Whole hours, days and so on, as many as there is room for.
function drawTimes(pen, left, width, height) {
  const [from, to] = span(), most = Math.max(2, Math.floor(width / 90)), shift = new Date().getTimezoneOffset() * 60;
  const steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000, 31536000];
  const step = steps.find((s) => (to - from) / s <= most) || 31536000;
  const form = new Intl.DateTimeFormat("en-GB", step >= 86400 ? { day: "numeric", month: "short", year: to - from > 2e7 ? "numeric" : undefined } :
    { hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined, hourCycle: "h23", day: to - from > 86400 ? "numeric" : undefined, month: to - from > 86400 ? "short" : undefined });
  pen.fillStyle = css("--soft"); pen.strokeStyle = css("--line"); pen.textBaseline = "top"; pen.lineWidth = 1;
  for (let t = Math.ceil((from - shift) / step) * step + shift; t <= to; t += step) {
    const x = left + ((t - from) / (to - from)) * width;
    pen.textAlign = x > left + width - 30 ? "right" : x < left + 30 ? "left" : "center";
    pen.beginPath(); pen.moveTo(x, height); pen.lineTo(x, height + 4); pen.stroke();
    pen.fillText(form.format(new Date(t * 1000)), x, height + 6);
  }
}

export function drawHeat() {
  const canvas = $("heat"), ratio = devicePixelRatio || 1, { shown } = view;
  const rows = Math.max(48, Math.min(TALLEST, shown.length * (shown.length <= 12 ? 26 : 14))), height = rows + FOOT;
  const all = Math.max(200, canvas.clientWidth), left = gutter(), width = all - left;
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(all * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(all * ratio); canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, all, height);
  heat.at = columns();
  if (!shown.length) return;
  drawCells(pen, left, width, rows);
  drawNames(pen, left, rows);
  drawTimes(pen, left, width, rows);
  const [from, to] = span();
  for (const mark of marks()) {
    if (mark.kind === "done" || mark.t < from || mark.t > to) continue;
    const x = left + ((mark.t - from) / (to - from)) * width;
    pen.strokeStyle = css(mark.kind === "raised" ? "--red" : "--soft"); pen.lineWidth = 1.5;
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, rows); pen.stroke();
  }
  if (heat.cursor) {
    const [x, y] = heat.cursor, w = width / heat.at.length, h = rows / shown.length;
    pen.strokeStyle = css("--ink"); pen.lineWidth = 2;
    pen.strokeRect(left + x * w, y * h, Math.max(w, 6), Math.max(h, 6));
  }
  tellHeat();
}

function tellHeat() {
  if (!heat.cursor) return write($("heat-text"), "");
  const [x, y] = heat.cursor, i = heat.at[x], c = view.shown[y];
  if (c === undefined) return;
  const [from, to] = span(), t = from + ((x + 0.5) * (to - from)) / heat.at.length, name = view.about.classes[c];
  if (i < 0) return write($("heat-text"), `${name}, ${when(t)}: no samples`);
  const times = 2 ** ((view.cells[i][c] / 127) * view.past.heat.range);
  write($("heat-text"), `${name}, ${when(view.t[i])}: ${times >= 1 ? times.toFixed(times < 10 ? 2 : 0) + " times its source share" :
    "1/" + (1 / times).toFixed(1 / times < 10 ? 2 : 0) + " of its source share"}`);
}

export function forgetHeat() { heat.cursor = null; write($("heat-text"), ""); }

export function heatPoint(event) {
  const box = $("heat").getBoundingClientRect(), left = gutter(), rows = box.height - FOOT;
  const x = (event.clientX - box.left - left) / (box.width - left), y = (event.clientY - box.top) / rows;
  if (!view.shown.length || x < 0 || y > 1) return;
  heat.cursor = [Math.min(heat.at.length - 1, Math.floor(x * heat.at.length)), Math.min(view.shown.length - 1, Math.floor(y * view.shown.length))];
  drawHeat();
}

export function heatKey(event) {
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] }[event.key];
  if (!move || !heat.at.length) return;
  event.preventDefault();
  let last = heat.at.length - 1;
  while (last > 0 && heat.at[last] < 0) last--; // begin where something was heard of the stream
  const [x, y] = heat.cursor || [last, 0];
  heat.cursor = [Math.max(0, Math.min(heat.at.length - 1, x + move[0])), Math.max(0, Math.min(view.shown.length - 1, y + move[1]))];
  drawHeat();
}
