"""The report as one HTML file: nothing is loaded from anywhere, it prints well, and reads without scripts."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import isinf, isnan, nan
from typing import Any

from reprior._check import counted
from reprior.estimates.show import cut, share, times

MOVERS = 20  # classes in the charts; the table has all
BARS = 12
GROUPS = 200  # in the table; the JSON has all
SORTED = "sorted by how far the share moved"

STYLE, SCRIPT = ((files(__package__) / name).read_text("utf-8") for name in ("page.css", "page.js"))


def page(report: dict[str, Any]) -> str:
    """Return a collected report (plain lists and numbers) as an HTML document."""
    order = by_change(report["source_prior"], report["shares"])
    title, lead = escape(report["made"]["title"]), paragraphs(report["headline"], "lead ")
    rows = "".join(f"<tr><td>{escape(str(name))}</td><td>{html_text(str(value))}</td></tr>"
                   for name, value in report["made"].items() if name != "title")  # fmt: skip
    parts = [
        f"<header><h1>{html_text(report['made']['title'])}</h1>{lead}{cards(report)}</header>",
        section("Shares", glance(report, order[:MOVERS])),
        *([section(f"Groups by {report['by']}", groups(report))] if "by" in report else []),
        section("What it means", paragraphs(report["diagnosis"]), whole=True),
        section("Predictions before and after", before_after(report), whole=True),
        section("Do other methods agree?", agreement(report), whole=True),
        section("All classes", everything(report, order)),
        section("How this was made", f'<div class="wide"><table class="left">{rows}</table></div>', whole=True),
    ]
    ours = b64encode(sha256(SCRIPT.encode()).digest()).decode()  # whatever else names may hold, no browser runs
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{ours}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def by_change(before: list[float], after: list[float]) -> list[int]:
    """Return the classes, those that moved most first."""
    return sorted(range(len(before)), key=lambda j: -round(abs(after[j] - before[j]), 12))


def section(title: str, body: str, *, whole: bool = False) -> str:
    """Return a section; a `whole` one is not split over pages in print."""
    return f'<section class="{"whole" * whole}"><h2>{escape(title)}</h2>\n{body}</section>'


def paragraphs(sentences: list[dict[str, Any]], kind: str = "") -> str:
    """Return sentences as paragraphs, those that warn marked."""
    style = {True: "" if kind else "fine", False: "warn"}
    return "\n".join(f'<p class="{kind}{style[item["ok"]]}">{html_text(item["text"])}</p>' for item in sentences)


def cards(report: dict[str, Any]) -> str:
    changed = report["predictions"]["changed"] / report["n"]
    shown = [
        (f"{report['n']:,.0f}", "sample" if report["n"] == 1 else "samples"), (f"{len(report['prior']):,}", "classes"),
        (html_share(report["distance"]), "change of the class prior"), (html_share(changed), "of predictions change"),
        (html_text(report["made"]["method"]), "method" if report["ok"] else "method, not converged"),
    ]  # fmt: skip
    inner = "".join(f'<div class="card"><b>{value}</b><span>{name}</span></div>' for value, name in shown)
    return f'<div class="cards">{inner}</div>'


def key(**entries: str) -> str:
    """Return a legend: what each kind of mark stands for."""
    marks = (f'<span><i class="{kind}"></i>{text}</span>' for kind, text in entries.items())
    return f'<p class="soft key">{"".join(marks)}</p>'


def glance(report: dict[str, Any], top: list[int]) -> str:
    k = len(report["shares"])
    which = f"The {MOVERS} of {k:,} classes that moved most" if k > MOVERS else "Classes"
    about = f"{which}, {SORTED}. The source share is the prior that the predictions imply"
    about += f" ({report['source_made']}). {report['note']} {not_applied(report)}"
    chart = shift_chart(
        *([report[name][j] for j in top] for name in ("classes", "source_prior", "shares", "lower", "upper"))
    )
    legend = key(source="source share", target="estimated share", band=interval_name(report))
    body = f'{legend}{chart}<p class="soft">{html_text(about)}</p>'
    flat = max(report["source_prior"]) < 1.01 * min(report["source_prior"])  # all dots on one line would say little
    if k <= MOVERS or flat:
        return body
    cloud = cloud_chart(report["source_prior"], report["shares"], report["classes"])
    least = min(*report["shares"], *report["source_prior"])
    edge = " Shares at the lower and left edge are smaller than shown." if least < EDGE_SHARE else ""
    caption = f'<figcaption class="soft">One dot per class. On the line nothing has changed.{edge}</figcaption>'
    return f'{body}<figure class="whole">{caption}{cloud}</figure>'


def interval_name(report: dict[str, Any]) -> str:
    """Return what the intervals are called."""
    return f"{100 * report['level']:g}\u00a0% interval"


def not_applied(report: dict[str, Any]) -> str:
    """Return a sentence about intervals of a correction of which less than half is applied, else nothing."""
    acts = report["acts"]
    if acts is None or acts["log_evidence"] is None or acts["share"] >= 0.5:
        return ""
    nothing = acts["share"] < 0.005
    applied = "The correction is not applied." if nothing else f"{acts['share']:.0%} of the correction is applied."
    return f"The intervals allow for label shift and for other changes. {applied}"


def groups(report: dict[str, Any]) -> str:
    """Return what the groups have in common, and a table of the largest."""
    (head, *body), rest = report["group_table"]
    rows = ["<tr>" + "".join(f"<td>{html_text(cell)}</td>" for cell in row) + "</tr>" for row in body]
    table = grid(head, rows, "groups")
    more = f" {counted(rest, 'group')} of at most this size are left out." if rest else ""
    about = f"Groups sorted by their number of rows.{more} {report['groups_note']}"
    return f'<p>{html_text(report["population"]["text"])}</p>{table}<p class="soft">{html_text(about)}</p>'


def before_after(report: dict[str, Any]) -> str:
    predictions = report["predictions"]
    order = by_change(predictions["before"], predictions["after"])[:BARS]
    names, before, after = (
        [values[j] for j in order] for values in (report["classes"], predictions["before"], predictions["after"])
    )

    def rows(count: int) -> str:
        return f"{counted(count, 'row')} ({html_share(count / report['n'])})"

    what = f"Correction changes the predicted class of {rows(predictions['changed_by_correction'])}."
    if predictions["changed_by_calibration"]:
        what = f"Calibration changes the predicted class of {rows(predictions['changed_by_calibration'])}. {what} "
        what += f"Together they change {rows(predictions['changed'])}."
    some = f"the {BARS} with the largest change, " if len(predictions["before"]) > BARS else ""
    return (
        f"<p>{what} Mean confidence goes from {html_share(predictions['confidence'])} to "
        f"{html_share(predictions['corrected_confidence'])}.</p>"
        + key(before="predicted by the raw probabilities", after="predicted after calibration and correction")
        + pair_chart(names, before, after)
        + f'<p class="soft">Classes: {some}sorted by how far the number of predictions moved.</p>'
    )


def agreement(report: dict[str, Any]) -> str:
    rows = []
    for row in report["agreement"]:
        method = html_text(row["method"])
        if "skipped" in row:
            rows.append(f'<tr><td>{method}</td><td colspan="3">{escape(row["skipped"])}</td></tr>')
            continue
        far = by_change(report["shares"], row["prior"])[0]
        same = abs(row["prior"][far] - report["shares"][far]) < 1e-9
        fit = row.get("log_likelihood", nan)  # a mean prediction has none; one that rules out a row is null in JSON
        likelihood = "−∞" if fit is None or isinf(fit) else "—" if isnan(fit) else f"{fit:.4f}".replace("-", "−")
        most = "—" if same else f"{html_text(report['classes'][far], 32)}: {html_share(row['prior'][far])}"
        distance = "—" if same else html_share(row["distance"])
        rows.append(f"<tr><td>{method}</td><td>{distance}</td><td>{likelihood}</td><td>{most}</td></tr>")
    heads = ("method", "distance from this report", "log-likelihood per sample",
             "its estimate of the class that differs most")
    return grid(heads, rows)


def everything(report: dict[str, Any], order: list[int]) -> str:
    rows = []
    for j in order:
        a, b, low, high = (report[name][j] for name in ("source_prior", "shares", "lower", "upper"))
        cells = ((a, html_share(a)), (b, html_share(b)), (low or 0, f"{html_share(low)} … {html_share(high)}"),
                 (min(b / a, 1e9) if a else 1e9, escape(times(a, b))))  # fmt: skip
        shown = "".join(f'<td data-v="{value:.6g}">{text}</td>' for value, text in cells)
        rows.append(f"<tr><td>{html_text(report['classes'][j])}</td>{shown}</tr>")
    heads = ("class", "source", "estimated", interval_name(report), "change")
    search = f'<p class="soft">{len(order):,} classes, {SORTED}. <span class="hint">A click on a heading sorts by it.'
    search += f'</span> {not_applied(report)}</p><input id="q" placeholder="Find a class" aria-label="Find a class">'
    return search + grid(heads, rows, "all")


def grid(heads: Sequence[str], rows: list[str], name: str = "") -> str:
    """Return a table in a box that scrolls by itself; one with a name may be long."""
    head = "".join(f"<th>{text}</th>" for text in heads)
    box = f'<div class="wide tall"><table id="{name}">' if name else '<div class="wide"><table>'
    return f"{box}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


EDGE_SHARE = 1e-7  # share below which a dot stays at the edge


def html_share(x: float | None) -> str:
    """Return a share as HTML that stays on one line."""
    return escape(share(x)).replace(" ", "\u00a0")


def html_text(text: str, size: int | None = None) -> str:
    """Return a text as HTML, whole or cut to a size; a long name may break at its punctuation, never a word."""
    text = escape(text if size is None else cut(text, size)).replace(" %", "\u00a0%").replace("&lt; ", "&lt;\u00a0")
    text = re.sub(r"\S{25,}", lambda long: re.sub(r"[_/.:|-](?=[^\W_])", r"\g<0><wbr>", long[0]), text)
    return re.sub(r"\(p [^()]{1,20}\)", r'<span class="one">\g<0></span>', text)


def ticks(top: float) -> list[float]:
    """Return about five round numbers from 0 to at most `top`."""
    step = 10.0 ** math.floor(math.log10(top / 4))
    step *= next(m for m in (1, 2, 5, 10) if top / (step * m) <= 5.5)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def round_share(x: float) -> str:
    """Return a round share, as on an axis, without needless digits."""
    return f"{100 * x:.9f}".rstrip("0").rstrip(".") + "\u00a0%"


def line_chart(
    classes: Sequence[str], tracks: Iterable[str], values: Iterable[str], axis: str = "", step: float = 200
) -> str:
    """Return a chart of one line a class: its name, its marks, and what they stand for."""
    out = [f'<div class="chart" style="--step:{step:.4f}%">']
    for name, track, value in zip(classes, tracks, values, strict=True):
        out.append(f'<span class="name" title="{escape(name)}">{html_text(name, 32)}</span>')
        out.append(f'<span class="value">{value}</span><div class="track" aria-hidden="true">{track}</div>')
    return "\n".join([*out, f"{axis}</div>"])


def shift_chart(
    classes: Sequence[str], source: Sequence[float], target: Sequence[float],
    lower: Sequence[float | None], upper: Sequence[float | None],
) -> str:  # fmt: skip
    """Return one line a class: the source share, the target share, and its interval."""
    top = 1.04 * max(*source, *target, *(end for end in upper if end is not None), 1e-5)

    def at(x: float) -> str:
        return f"left:{100 * x / top:.2f}%"

    def marks(j: int) -> Iterable[str]:
        a, b, low, high = source[j], target[j], lower[j], upper[j]
        if low is not None and high is not None:
            yield f'<i class="band" style="{at(low)};width:{100 * (high - low) / top:.2f}%"></i>'
        yield f'<i class="target" style="{at(b)}"></i><i class="source" style="{at(a)}"></i>'

    scale = ticks(top)
    labels = "".join(f'<span style="{at(tick)}">{round_share(tick)}</span>' for tick in scale)
    each = range(len(classes))
    return line_chart(classes, ("".join(marks(j)) for j in each),
                 (f"{html_share(source[j])} → <b>{html_share(target[j])}</b>" for j in each),
                 f'<div class="track axis" aria-hidden="true">{labels}</div>', 100 * scale[1] / top)  # fmt: skip


def pair_chart(classes: Sequence[str], before: Sequence[float], after: Sequence[float]) -> str:
    """Return two bars a class: rows predicted before and after correction."""
    top = max(*before, *after, 1)

    def bars(j: int) -> str:
        return "".join(f'<i class="bar {kind}" style="width:{100 * value / top:.2f}%"></i>'
                       for value, kind in ((before[j], "before"), (after[j], "after")))  # fmt: skip

    each = range(len(classes))
    return line_chart(classes, (bars(j) for j in each), (f"{before[j]:,.0f} → {after[j]:,.0f}" for j in each))


def cloud_chart(source: Sequence[float], target: Sequence[float], classes: Sequence[str]) -> str:
    """Return every class as a dot, source against target share, both on logarithmic scales."""
    low = max(EDGE_SHARE, min(x for x in (*source, *target) if x > 0))
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(max(*source, *target)))
    size, pad, span = 352, 74, 250

    def at(x: float) -> float:
        return span * (math.log10(max(x, 10.0**first)) - first) / max(1, last - first)

    out = [f'<svg viewBox="0 0 {size} {span + 52}" role="img" aria-label="Source against target share">']
    every = -(-(last - first) // 4)  # as many labels as have room
    for power in range(first, last + 1):
        x, y = pad + at(10.0**power), 8 + span - at(10.0**power)
        out.append(f'<path class="grid" d="M{x:.1f} 8V{8 + span}M{pad} {y:.1f}H{pad + span}"/>')
        if (last - power) % every == 0:
            text = round_share(10.0**power)
            out.append(f'<text x="{x:.1f}" y="{span + 24}">{text}</text>')
            out.append(f'<text class="end" x="{pad - 6}" y="{y + 4:.1f}">{text}</text>')
    out.append(f'<path class="same" d="M{pad} {8 + span}L{pad + span} 8"/>')
    for a, b, name in zip(source, target, classes, strict=True):
        out.append(f'<circle cx="{pad + at(a):.1f}" cy="{8 + span - at(b):.1f}" r="3">'
                   f"<title>{escape(name)}: {html_share(a)} → {html_share(b)}</title></circle>")  # fmt: skip
    out.append(f'<text x="{pad + span / 2}" y="{span + 46}">source share</text>')
    out.append(f'<text transform="translate(12 {8 + span / 2}) rotate(-90)">estimated share</text></svg>')
    return "\n".join(out)
