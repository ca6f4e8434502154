"""Small charts as SVG text: no library, no script, sharp on screen and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

LEFT, RIGHT, ROW = 196, 104, 22


def percent(share: float) -> str:
    """Return a share as text with sensible digits."""
    value = 100 * share
    digits = ".0f" if value >= 99.95 else ".1f" if value >= 1 else ".2f" if value >= 0.1 else ".2g"
    return f"{value:{digits}}\u00a0%" if value else "0"


def times(ratio: float) -> str:
    """Return by how much a share has changed."""
    digits = ".0f" if ratio >= 99.5 else ".1f" if ratio >= 9.95 else ".2f" if ratio >= 0.095 else ".1g"
    return f"×\u00a0{ratio:{digits}}"


def ticks(top: float) -> list[float]:
    """Return about five round numbers from 0 to at most `top`."""
    step = 10.0 ** math.floor(math.log10(top / 4))
    step *= next(m for m in (1, 2, 5, 10) if top / (step * m) <= 5.5)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def clip(name: str, size: int = 24) -> str:
    """Return a name that fits beside a chart: long ones differ at their end as often as at their beginning."""
    return escape(name if len(name) <= size else f"{name[: size // 2]}…{name[-(size // 2 - 1) :]}")


def shift_chart(
    names: Sequence[str], source: Sequence[float], target: Sequence[float], lower: Sequence[float],
    upper: Sequence[float], *, width: int = 860,
) -> str:  # fmt: skip
    """Return one line a class: the source share, the target share with its interval, and an arrow between them."""
    top = 1.04 * max(*source, *target, *upper, 1e-9)
    span, height = width - LEFT - RIGHT, ROW * len(names) + 34

    def x(share: float) -> float:
        return round(LEFT + span * share / top, 1)

    out = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Source and target share of each class">']
    for tick in ticks(top):
        out.append(f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="4" y2="{height - 26}"/>')
        out.append(f'<text class="tick" x="{x(tick)}" y="{height - 10}">{100 * tick:g} %</text>')
    for i, name in enumerate(names):
        y, a, b = 16 + ROW * i, source[i], target[i]
        out.append(f'<text class="name" x="{LEFT - 12}" y="{y + 4}">{clip(name)}<title>{escape(name)}</title></text>')
        out.append(f'<rect class="band" x="{x(lower[i])}" y="{y - 6}" height="12" rx="3" '
                   f'width="{max(1.0, round(x(upper[i]) - x(lower[i]), 1))}"/>')  # fmt: skip
        out.append(f'<line class="move" x1="{x(a)}" x2="{x(b)}" y1="{y}" y2="{y}"/>')
        out.append(f'<circle class="source" cx="{x(a)}" cy="{y}" r="4"/>')
        out.append(f'<circle class="target" cx="{x(b)}" cy="{y}" r="5"/>')
        out.append(f'<text class="value" x="{width - 58}" y="{y + 4}">{percent(b)}</text>')
        out.append(f'<text class="value" x="{width - 4}" y="{y + 4}">{times(b / a)}</text>')
    return "\n".join([*out, "</svg>"])


def pair_chart(names: Sequence[str], before: Sequence[float], after: Sequence[float], *, width: int = 860) -> str:
    """Return two bars a class: rows predicted before and after correction."""
    top = 1.04 * max(*before, *after, 1)
    span, height = width - LEFT - RIGHT, 26 * len(names) + 8
    out = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Predictions before and after">']
    for i, name in enumerate(names):
        y = 6 + 26 * i
        out.append(f'<text class="name" x="{LEFT - 12}" y="{y + 13}">{clip(name)}<title>{escape(name)}</title></text>')
        for value, kind, dy in ((before[i], "before", 0), (after[i], "after", 9)):
            out.append(f'<rect class="{kind}" x="{LEFT}" y="{y + dy}" height="8" rx="2" '
                       f'width="{max(0.5, round(span * value / top, 1))}"/>')  # fmt: skip
        out.append(f'<text class="value" x="{width - 4}" y="{y + 13}">{before[i]:,.0f} → {after[i]:,.0f}</text>')
    return "\n".join([*out, "</svg>"])


def cloud_chart(source: Sequence[float], target: Sequence[float], names: Sequence[str], *, size: int = 420) -> str:
    """Return every class as a dot, source against target share, both on logarithmic scales."""
    low = min(share for share in (*source, *target) if share > 0)
    low, high = max(low, 1e-7), max(*source, *target)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    pad, span = 80, size - 100
    height = span + 52

    def at(share: float) -> float:
        return span * (math.log10(max(share, 10.0**first)) - first) / max(1, last - first)

    out = [f'<svg viewBox="0 0 {size} {height}" class="cloud" role="img" aria-label="Source against target share">']
    for power in range(first, last + 1):
        place = at(10.0**power)
        text = f"{100 * 10.0**power:g} %"
        out.append(f'<line class="grid" x1="{pad + place:.1f}" x2="{pad + place:.1f}" y1="8" y2="{8 + span}"/>')
        out.append(
            f'<line class="grid" x1="{pad}" x2="{pad + span}" y1="{8 + span - place:.1f}" y2="{8 + span - place:.1f}"/>'
        )
        out.append(f'<text class="tick" x="{pad + place:.1f}" y="{span + 26}">{text}</text>')
        out.append(f'<text class="value" x="{pad - 6}" y="{12 + span - place:.1f}">{text}</text>')
    out.append(f'<line class="move" x1="{pad}" y1="{8 + span}" x2="{pad + span}" y2="8"/>')
    for a, b, name in zip(source, target, names, strict=True):
        out.append(f'<circle class="dot" cx="{pad + at(a):.1f}" cy="{8 + span - at(b):.1f}" r="3">'
                   f"<title>{escape(name)}: {percent(a)} → {percent(b)}</title></circle>")  # fmt: skip
    middle = 8 + span / 2
    out.append(f'<text class="tick" x="{pad + span / 2}" y="{height - 4}">training share</text>')
    out.append(f'<text class="tick" transform="translate(12 {middle}) rotate(-90)">estimated share</text></svg>')
    return "\n".join(out)
