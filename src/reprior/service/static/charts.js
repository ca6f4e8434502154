// The shares and the samples per second over time, with the chosen time range, markers, tooltips and zoom.
import { choose, fixed, span, state, writeAddress } from "./address.js";
import { $, clock, colours, count, css, make, percent, plural, rate, when, write } from "./util.js";
import { marks, rates, view } from "./view.js";

const charts = {};
export const theme = () => document.documentElement.dataset.theme;

function axes(format) {
  const stroke = css("--soft"), grid = { stroke: css("--line"), width: 1 }, font = "12px system-ui, sans-serif";
  const times = [[31536000, "{YYYY}"], [2419200, "{MMM}\n{YYYY}"], [86400, "{D} {MMM}\n{YYYY}"], [3600, "{HH}:{mm}\n{D} {MMM}"],
    [60, "{HH}:{mm}\n{D} {MMM}"], [1, "{HH}:{mm}:{ss}\n{D} {MMM}"]].map(([size, text]) => {
    const [main, more] = text.split("\n");
    return [size, main, null, null, more ? "\n" + more : null, null, null, null, 1];
  });
  return [{ stroke, grid, ticks: grid, font, values: times },
    { stroke, grid, ticks: grid, font, size: 62, values: (plot, ticks, axis, space, step) => ticks.map((x) => format(x, step)) }];
}

// A share beside an axis: as many digits as the step between two ticks needs.
const tick = (x, step) => `${(100 * x).toFixed(Math.max(0, -Math.floor(Math.log10(100 * step) + 1e-9)))} %`;

// Called by uPlot after each drawing: alarms as vertical lines, the time since when they hold as a band.
function drawMarks(plot) {
  const { ctx: pen, bbox } = plot, ratio = devicePixelRatio || 1, [from, to] = span();
  const place = (t) => plot.valToPos(Math.max(from, Math.min(to, t)), "x", true);
  pen.save();
  for (const mark of marks()) {
    if (mark.t < from || mark.t > to) continue;
    const x = place(mark.t), colour = css({ raised: "--red", silent: "--soft", version: "--ink", done: "--green" }[mark.kind]);
    if (mark.since && mark.since < mark.t) {
      pen.fillStyle = colour + "1c";
      pen.fillRect(place(mark.since), bbox.top, x - place(mark.since), bbox.height);
    }
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.5 * ratio;
    pen.setLineDash(mark.kind === "done" ? [3 * ratio, 3 * ratio] : []);
    pen.beginPath(); pen.moveTo(x, bbox.top); pen.lineTo(x, bbox.top + bbox.height); pen.stroke();
    pen.font = `${12 * ratio}px system-ui, sans-serif`;
    pen.textAlign = x > bbox.left + bbox.width - 20 * ratio ? "right" : "left";
    pen.fillText({ raised: "▲", silent: "■", version: "◆", done: "✓" }[mark.kind], x + (pen.textAlign === "left" ? 3 : -3) * ratio, bbox.top + 11 * ratio);
  }
  pen.restore();
}

function drawSources(plot) {
  const { ctx: pen, bbox } = plot, ratio = devicePixelRatio || 1, tones = colours(state.stream, view.chosen);
  pen.save();
  pen.setLineDash([6 * ratio, 5 * ratio]); pen.lineWidth = ratio; pen.globalAlpha = 0.7;
  view.chosen.forEach((c, k) => {
    const y = plot.valToPos(view.about.source[c], "y", true);
    if (y < bbox.top) return;
    pen.strokeStyle = tones[k];
    pen.beginPath(); pen.moveTo(bbox.left, y); pen.lineTo(bbox.left + bbox.width, y); pen.stroke();
  });
  pen.restore();
}

// A box with the values at the cursor; the same text is read out when the cursor is moved by keys.
function tooltip(holder, lines) {
  const box = make("div", null, "tip");
  box.hidden = true;
  holder.append(box);
  return (plot) => {
    const { left, top, idx } = plot.cursor;
    box.hidden = left === null || left === undefined || left < 0 || idx === null || idx === undefined || plot.data[0][idx] === undefined;
    if (box.hidden) return;
    const near = marks().filter((m) => Math.abs(plot.valToPos(m.t, "x") - left) < 6);
    box.replaceChildren(make("b", when(plot.data[0][idx])), ...lines(idx).map(([colour, text]) => {
      const line = make("div"), swatch = make("i");
      if (colour) { swatch.style.background = colour; line.append(swatch); }
      line.append(text);
      return line;
    }), ...near.map((m) => make("div", `${m.text}, ${clock(m.t)}`, "mark")));
    const frame = plot.over, right = left > frame.clientWidth / 2;
    box.style.left = right ? "" : frame.offsetLeft + left + 14 + "px";
    box.style.right = right ? holder.clientWidth - frame.offsetLeft - left + 14 + "px" : "";
    box.style.top = Math.max(0, frame.offsetTop + Math.min(top < 0 ? 10 : top, frame.clientHeight - box.offsetHeight)) + "px";
  };
}

function zoomed(plot) {
  const { left, width } = plot.select;
  if (width < 4) return;
  const from = plot.posToVal(left, "x"), to = plot.posToVal(left + width, "x");
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  if (to - from >= 1) zoomTo(Math.floor(from), Math.ceil(to));
}

export function zoomTo(from, to) {
  if (!fixed()) charts.before = state.range;
  choose("custom", from, to);
  writeAddress(true);
  dispatchEvent(new Event("reprior-range"));
}

export function zoomOut() {
  choose(charts.before || "1h");
  writeAddress(true);
  dispatchEvent(new Event("reprior-range"));
}

function chart(which, key, height, build, data, lines) {
  const holder = $(which), width = Math.max(200, holder.clientWidth);
  const old = charts[which];
  if (old && old.key === key) {
    if (old.plot.width !== width) old.plot.setSize({ width, height });
    old.plot.setData(data);
    return;
  }
  if (old) old.plot.destroy();
  holder.replaceChildren();
  const tell = tooltip(holder, lines), made = build();
  const options = {
    width, height, legend: { show: false }, ...made, padding: [10, 14, null, null],
    cursor: { points: { size: 7 }, drag: { x: true, y: false, setScale: false }, sync: { key: "time" }, bind: { dblclick: () => () => { zoomOut(); return null; } } },
    hooks: { setCursor: [tell], setSelect: [zoomed], draw: made.draw },
    scales: { ...made.scales, x: { time: true, range: () => span() } },
  };
  charts[which] = { key, plot: new uPlot(options, data, holder) };
}

// The arrow keys move the cursor from point to point.
export function chartKey(event) {
  const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key], found = charts[event.currentTarget.id];
  if (event.key === "Escape" && fixed()) return zoomOut();
  if (move === undefined || !found || !found.plot.data[0].length) return;
  event.preventDefault();
  const { plot } = found, last = plot.data[0].length - 1, before = plot.cursor.idx ?? last + 1;
  const idx = Math.max(0, Math.min(last, before + move));
  plot.setCursor({ left: plot.valToPos(plot.data[0][idx], "x"), top: plot.over.clientHeight / 3 });
  const lines = () => [...plot.root.parentNode.querySelectorAll(".tip > *")].map((line) => line.textContent);
  setTimeout(() => write($("said"), lines().join("; "))); // uPlot moves its cursor after this event
}

export function drawLines() {
  const names = view.chosen.map((c) => view.about.classes[c]), tones = colours(state.stream, view.chosen), few = view.t.length < 40;
  const key = [state.stream, theme(), view.chosen, few].join("|");
  chart("lines", key, 280, () => {
    const series = [{}], bands = [];
    tones.forEach((stroke) => {
      const place = series.length, none = { width: 0, points: { show: false } };
      series.push(none, { stroke, width: 2, points: { show: few, size: 5, fill: stroke } }, none);
      bands.push({ series: [place, place + 2], fill: stroke + "2e" });
    });
    const highest = (_, low, high) => (!view.chosen.length ? [0, 1] : [0, Math.min(1, Math.max(0.01, (high || 0.01) * 1.05, ...view.chosen.map((c) => view.about.source[c] * 1.05)))]);
    return { series, bands, axes: axes(tick), scales: { y: { range: highest } }, draw: [drawSources, drawMarks] };
  }, [view.t, ...view.series.flat()], (i) => view.chosen.map((c, k) => [colours(state.stream, view.chosen)[k],
    `${brief(view.about.classes[c])}: ${percent(view.series[k][1][i])} (${percent(view.series[k][2][i])} to ${percent(view.series[k][0][i])})`])
    .concat([[null, plural(view.n[i], "sample", "samples")]]));
  drawLegend(names, tones);
  const some = view.shown.length > names.length ? `The ${names.length} of ${count(view.shown.length)} classes that moved most, ` : "";
  write($("lines-hint"), state.classes && !view.shown.length ? "No class has this in its name." :
    !view.t.length ? `No samples in this range.${view.live.n ? ` The last ones came ${when(view.live.seen)}.` : ""}` :
      (some + "with 95 % intervals. Dashed: the source prior. Drag to zoom.").replace(/^w/, "W"));
}

const brief = (name) => (name.length > 28 ? name.slice(0, 27) + "…" : name);

function drawLegend(names, tones) {
  const legend = $("legend");
  while (legend.children.length > names.length) legend.lastChild.remove();
  names.forEach((name, k) => {
    let item = legend.children[k];
    if (!item) { item = make("li"); item.append(make("i"), document.createTextNode("")); legend.append(item); }
    item.firstChild.style.background = tones[k];
    const text = `${name}: ${percent(view.live.prior[view.chosen[k]])}`;
    if (item.lastChild.data !== text) item.lastChild.data = text;
  });
}

export function drawRate() {
  const data = rates(), few = data[0].length < 3;
  chart("rate", [state.stream, theme(), few].join("|"), 130, () => ({
    series: [{}, { stroke: css("--blue"), fill: css("--blue") + "22", width: 1.5, points: { show: few, size: 5 } }], axes: axes((x) => (x < 10 && x % 1 ? x.toFixed(1) : count(x))),
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high || 1) * 1.1)] } }, draw: [drawMarks],
  }), data, (i) => [[css("--blue"), `${rate(charts.rate.plot.data[1][i] ?? 0)} samples per second`]]);
}
