"""Small charts as HTML and SVG text: no library, no script, readable on a phone, on a screen and on paper.

Charts of one line a class are laid out by the page's style sheet. They keep the size of their letters at any width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from reprior.estimates.show import cut, share

EDGE_SHARE = 1e-7  # share below which a dot stays at the edge


def percent(x: float | None) -> str:
    """Return a share as HTML that stays on one line."""
    return escape(share(x)).replace(" ", "\u00a0")


def named(text: str, size: int | None = None) -> str:
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


def lines(
    classes: Sequence[str], tracks: Iterable[str], values: Iterable[str], axis: str = "", step: float = 200
) -> str:
    """Return a chart of one line a class: its name, its marks, and what they stand for."""
    out = [f'<div class="chart" style="--step:{step:.4f}%">']
    for name, track, value in zip(classes, tracks, values, strict=True):
        out.append(f'<span class="name" title="{escape(name)}">{named(name, 32)}</span>')
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
    return lines(classes, ("".join(marks(j)) for j in each),
                 (f"{percent(source[j])} → <b>{percent(target[j])}</b>" for j in each),
                 f'<div class="track axis" aria-hidden="true">{labels}</div>', 100 * scale[1] / top)  # fmt: skip


def pair_chart(classes: Sequence[str], before: Sequence[float], after: Sequence[float]) -> str:
    """Return two bars a class: rows predicted before and after correction."""
    top = max(*before, *after, 1)

    def bars(j: int) -> str:
        return "".join(f'<i class="bar {kind}" style="width:{100 * value / top:.2f}%"></i>'
                       for value, kind in ((before[j], "before"), (after[j], "after")))  # fmt: skip

    each = range(len(classes))
    return lines(classes, (bars(j) for j in each), (f"{before[j]:,.0f} → {after[j]:,.0f}" for j in each))


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
                   f"<title>{escape(name)}: {percent(a)} → {percent(b)}</title></circle>")  # fmt: skip
    out.append(f'<text x="{pad + span / 2}" y="{span + 46}">source share</text>')
    out.append(f'<text transform="translate(12 {8 + span / 2}) rotate(-90)">estimated share</text></svg>')
    return "\n".join(out)
