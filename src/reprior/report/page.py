"""The report as one HTML file: nothing is loaded from anywhere, it prints well, and reads without scripts."""

from __future__ import annotations

from html import escape
from typing import Any

from reprior.report.charts import cloud_chart, pair_chart, percent, shift_chart, times

MOVERS = 20  # classes in the charts; the table has all

STYLE = """
:root{--ink:#1d2530;--soft:#667;--line:#dfe3ea;--blue:#0b6e99;--red:#b3261e;--grey:#9aa3b2;--band:#bfe0ee}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);max-width:940px;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}p{margin:.4rem 0}
.lead{font-size:1.08rem}.soft{color:var(--soft);font-size:.9rem}
.cards{display:flex;flex-wrap:wrap;gap:.7rem;margin:1.2rem 0}
.card{border:1px solid var(--line);border-radius:8px;padding:.6rem .9rem;flex:1 1 130px}
.card b{display:block;font-size:1.35rem}.card span{color:var(--soft);font-size:.85rem}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}svg.cloud{max-width:440px}
.grid{stroke:var(--line)}.tick{fill:var(--soft);text-anchor:middle}.name{text-anchor:end}
.value{text-anchor:end;fill:var(--soft)}.band{fill:var(--band)}.move{stroke:var(--grey);stroke-width:1.2}
.source{fill:#fff;stroke:#555;stroke-width:1.6}.target,.after,.dot{fill:var(--blue)}.dot{fill-opacity:.55}
.before{fill:var(--grey)}.warn{border-left:4px solid var(--red);padding-left:.8rem}
.fine{border-left:4px solid var(--blue);padding-left:.8rem}
.key i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin:0 .3em 0 1em;vertical-align:-.05em}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}th{position:sticky;top:0;background:#fff}
td.wide,.left td{white-space:normal;overflow-wrap:anywhere}.left td{text-align:left}figure{margin:0}
#all th{cursor:pointer}.tall{max-height:560px;overflow:auto}
input{font:inherit;padding:.35rem .6rem;border:1px solid var(--line);border-radius:6px;width:16rem;margin-bottom:.6rem}
@media print{*{print-color-adjust:exact;-webkit-print-color-adjust:exact}body{margin:0;max-width:none;font-size:11px}
input,.hint{display:none}.tall{max-height:none;overflow:visible}svg,tr,.card,.whole{break-inside:avoid}h2{break-after:avoid;margin-top:1.2rem}
th{position:static}.lead{font-size:1.05rem}.soft{font-size:.95rem}td,th{padding:.15rem .5rem}svg.cloud{max-width:300px}}
"""

SCRIPT = """
const t=document.getElementById('all'),b=t.tBodies[0],q=document.getElementById('q');
q.oninput=()=>{const s=q.value.toLowerCase();
for(const r of b.rows)r.hidden=!r.cells[0].textContent.toLowerCase().includes(s)};
[...t.tHead.rows[0].cells].forEach((h,i)=>h.onclick=()=>{const d=h.dataset.d=h.dataset.d?-h.dataset.d:i?-1:1;
const v=r=>r.cells[i].dataset.v??r.cells[i].textContent;
[...b.rows].sort((x,y)=>d*(i?v(x)-v(y):v(x).localeCompare(v(y)))).forEach(r=>b.append(r))});
"""


def page(report: dict[str, Any]) -> str:
    """Return a collected report (plain lists and numbers) as an HTML document."""
    order = sorted(range(len(report["prior"])), key=lambda j: -abs(report["prior"][j] - report["source_prior"][j]))
    top = order[:MOVERS]
    parts = [
        f"<header><h1>{escape(report['made']['title'])}</h1>{lead(report, order)}{cards(report)}</header>",
        section("The shift at a glance", glance(report, top)),
        section("What to make of it", diagnosis(report), whole=True),
        section("Predictions before and after", before_after(report), whole=True),
        section("Do other methods agree?", agreement(report), whole=True),
        section("All classes", everything(report, order)),
        section("How this was made", made(report), whole=True),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(report['made']['title'])}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def section(title: str, body: str, *, whole: bool = False) -> str:
    """Return a section; a `whole` one is not split over pages in print."""
    return f'<section class="{"whole" * whole}"><h2>{escape(title)}</h2>\n{body}</section>'


def lead(report: dict[str, Any], order: list[int]) -> str:
    """Return the finding in two sentences."""
    j = order[0]
    name, before, after = escape(report["classes"][j]), report["source_prior"][j], report["prior"][j]
    verb = "rose" if after > before else "fell"
    inside = sum(
        lo <= s <= hi for lo, s, hi in zip(report["lower"], report["source_prior"], report["upper"], strict=True)
    )
    moved = len(order) - inside
    tail = (f"{moved} of {len(order)} classes moved beyond their {100 * report['level']:g}\u00a0% interval."
            if moved else "No class moved beyond its interval: this may well be no shift at all.")  # fmt: skip
    return (
        f'<p class="lead">Against the training mix, {percent(report["distance"])} of these {report["n"]:,.0f} rows '
        f"belong to other classes. <b>{name}</b> {verb} most, from {percent(before)} to {percent(after)}. {tail}</p>"
    )


def cards(report: dict[str, Any]) -> str:
    changed = report["predictions"]["changed"] / report["n"]
    shown = [
        (f"{report['n']:,.0f}", "rows"), (f"{len(report['prior']):,}", "classes"),
        (percent(report["distance"]), "of the mix has moved"), (percent(changed), "of predictions change"),
        (escape(report["made"]["method"]), "method, " + ("converged" if report["ok"] else "not converged")),
    ]  # fmt: skip
    inner = "".join(f'<div class="card"><b>{value}</b><span>{name}</span></div>' for value, name in shown)
    return f'<div class="cards">{inner}</div>'


def key(*entries: tuple[str, str]) -> str:
    """Return a legend of (style of the mark, text)."""
    return '<p class="soft key">' + "".join(f'<i style="{style}"></i>{text}' for style, text in entries) + "</p>"


def glance(report: dict[str, Any], top: list[int]) -> str:
    k = len(report["prior"])
    band = f"{100 * report['level']:g}\u00a0% interval" + (
        f" · the {len(top)} largest movers of {k:,}" if k > MOVERS else ""
    )
    legend = key(("border:2px solid #555", "training share"), ("background:var(--blue)", "estimated share"),
                 ("background:var(--band)", band))  # fmt: skip
    chart = shift_chart(
        *([report[name][j] for j in top] for name in ("classes", "source_prior", "prior", "lower", "upper"))
    )
    note = f'<p class="soft">{escape(report["note"])}</p>' if report["note"] else ""
    flat = max(report["source_prior"]) < 1.01 * min(report["source_prior"])  # all dots on one line would say little
    if k <= MOVERS or flat:
        return legend + chart + note
    cloud = cloud_chart(report["source_prior"], report["prior"], report["classes"])
    caption = '<figcaption class="soft">Every class as a dot; on the line nothing has changed.</figcaption>'
    return f'{legend}{chart}{note}<figure class="whole">{caption}{cloud}</figure>'


def diagnosis(report: dict[str, Any]) -> str:
    said = [{"text": report["message"], "ok": report["ok"]}, *report["diagnosis"]]
    return "\n".join(f'<p class="{"fine" if item["ok"] else "warn"}">{escape(item["text"])}</p>' for item in said)


def before_after(report: dict[str, Any]) -> str:
    told = report["predictions"]
    order = sorted(range(len(told["before"])), key=lambda j: -abs(told["after"][j] - told["before"][j]))[:12]
    names, before, after = ([values[j] for j in order] for values in (report["classes"], told["before"], told["after"]))
    share = percent(told["changed"] / report["n"])
    return (
        f"<p>Correcting changes the predicted class of {told['changed']:,} rows ({share}). Mean confidence goes from "
        f"{percent(told['confidence'])} to {percent(told['corrected_confidence'])}.</p>"
        + key(("background:var(--grey)", "rows predicted before"), ("background:var(--blue)", "after"))
        + pair_chart(names, before, after)
    )


def agreement(report: dict[str, Any]) -> str:
    rows = []
    for row in report["agreement"]:
        if "skipped" in row:
            rows.append(f'<tr><td>{row["method"]}</td><td colspan="3">{escape(row["skipped"])}</td></tr>')
            continue
        far = sorted(range(len(row["prior"])), key=lambda j: -abs(row["prior"][j] - report["prior"][j]))[0]
        distance = percent(row["distance"]) if row["distance"] else "—"
        same = abs(row["prior"][far] - report["prior"][far]) < 1e-9
        likelihood = "−∞" if row["log_likelihood"] is None else f"{row['log_likelihood']:.4f}"  # it rules out a row
        most = "—" if same else f"{escape(report['classes'][far])}: {percent(row['prior'][far])}"
        rows.append(f"<tr><td>{row['method']}</td><td>{distance}</td><td>{likelihood}</td>"
                    f'<td class="wide">{most}</td></tr>')  # fmt: skip
    heads = ("method", "differs from this report by", "log-likelihood a row", "furthest from this report on")
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in heads) + "</tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def everything(report: dict[str, Any], order: list[int]) -> str:
    rows = []
    for j in order:
        a, b, lo, hi = (report[name][j] for name in ("source_prior", "prior", "lower", "upper"))
        rows.append(f'<tr><td>{escape(report["classes"][j])}</td><td data-v="{a:.6g}">{percent(a)}</td>'
                    f'<td data-v="{b:.6g}">{percent(b)}</td><td data-v="{lo:.6g}">{percent(lo)} … {percent(hi)}</td>'
                    f'<td data-v="{b / a:.6g}">{times(b / a)}</td></tr>')  # fmt: skip
    head = "<tr><th>class</th><th>training</th><th>estimated</th><th>interval</th><th>change</th></tr>"
    search = '<input id="q" placeholder="Find a class" aria-label="Find a class">'
    search += f' <span class="soft hint">{len(order):,} classes; a click on a heading sorts them</span>'
    return (
        f'{search}<div class="tall"><table id="all"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def made(report: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{escape(str(name))}</td><td>{escape(str(value))}</td></tr>"
                   for name, value in report["made"].items() if name != "title")  # fmt: skip
    return f'<table class="left">{rows}</table>'
