// Source against now: a window of rows over all classes, the largest movers first.
import { state } from "./address.js";
import { $, make, percent, write } from "./util.js";
import { farthestFirst, view } from "./view.js";

const ROW = 26, TALLEST = 416;
const shares = { order: [], rows: [], at: 0, key: "", high: 0.01 };

function reorder() {
  const { live, about } = view;
  shares.order = farthestFirst(view.shown);
  shares.at = performance.now();
  shares.high = Math.max(0.01, ...shares.order.slice(0, 10000).map((c) => Math.max(live.upper[c], about.source[c])));
}

function makeRow() {
  const row = make("div", null, "cls"), bar = make("span", null, "bar");
  row.setAttribute("role", "row");
  bar.append(make("i", null, "band"), make("i", null, "was"), make("i", null, "is"));
  row.append(make("span"), bar, make("span"), make("span"), make("span"));
  for (const cell of row.children) cell.setAttribute("role", "cell");
  shares.rows.push(row);
  $("now-rows").append(row);
}

const put = (element, name, value) => { if (element.style[name] !== value) element.style[name] = value; };

export function drawNow() {
  const box = $("now"), { live, about } = view, key = state.stream + "\n" + state.classes;
  // rows that change places ten times a second cannot be read
  if (shares.order.length !== view.shown.length || shares.key !== key || performance.now() - shares.at > 3000) { reorder(); shares.key = key; }
  put(box, "height", Math.min(TALLEST, Math.max(30, shares.order.length * ROW + 2)) + "px");
  put($("now-rows"), "height", shares.order.length * ROW + "px");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 1), last = Math.min(shares.order.length, Math.ceil((box.scrollTop + TALLEST) / ROW) + 1);
  while (shares.rows.length < last - first) makeRow();
  const place = (x) => Math.max(0, Math.min(100, (100 * x) / shares.high)); // never beyond the column
  shares.rows.forEach((row, k) => {
    const c = shares.order[first + k], [name, bar, source, now, interval] = row.children, [band, was, is] = bar.children;
    row.hidden = first + k >= last;
    if (row.hidden) return;
    const low = place(live.lower[c]), high = place(live.upper[c]);
    put(row, "top", (first + k) * ROW + "px");
    put(band, "left", low.toFixed(2) + "%"); put(band, "width", Math.max(0.2, high - low).toFixed(2) + "%");
    put(was, "left", place(about.source[c]).toFixed(2) + "%"); put(is, "left", place(live.prior[c]).toFixed(2) + "%");
    write(name, about.classes[c]); name.title = about.classes[c];
    write(source, percent(about.source[c])); write(now, percent(live.prior[c]));
    write(interval, `${percent(live.lower[c]).replace("\u00a0%", "")} to ${percent(live.upper[c])}`);
  });
}
