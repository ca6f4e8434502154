"""Re-estimate a deployed classifier's class prior, in batch or on a stream, and correct its predictions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprior import bounds, calibrate, diagnose, metrics, simulate
    from reprior._check import InputError
    from reprior._types import Interval, PriorEstimate, Source, Status
    from reprior.alarm import Alarm
    from reprior.blocks import ArrayBlocks, Blocks, TopKBlocks, correct
    from reprior.em import ebls, fmapls, mapls, mlls
    from reprior.methods import ALIASES, METHODS, estimate
    from reprior.moments import bbse, rlls
    from reprior.selection import Pipeline, pipeline, select
    from reprior.source import summarize
    from reprior.stream import ONLINE, Stream
    from reprior.stream_table import StreamTable

_HOMES = {  # public names are imported when they are first used: `reprior --help` needs none of them
    "bounds": ("bounds",),
    "calibrate": ("calibrate",),
    "diagnose": ("diagnose",),
    "metrics": ("metrics",),
    "simulate": ("simulate",),
    "_check": ("InputError",),
    "_types": ("Interval", "PriorEstimate", "Source", "Status"),
    "alarm": ("Alarm",),
    "blocks": ("ArrayBlocks", "Blocks", "TopKBlocks", "correct"),
    "em": ("ebls", "fmapls", "mapls", "mlls"),
    "methods": ("ALIASES", "METHODS", "estimate"),
    "moments": ("bbse", "rlls"),
    "selection": ("Pipeline", "pipeline", "select"),
    "source": ("summarize",),
    "stream": ("ONLINE", "Stream"),
    "stream_table": ("StreamTable",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names or name == home:
            module = import_module(f"reprior.{home}")
            globals()[name] = value = module if name == home else getattr(module, name)
            return value
    raise AttributeError(f"module 'reprior' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ALIASES",
    "METHODS",
    "ONLINE",
    "Alarm",
    "ArrayBlocks",
    "Blocks",
    "InputError",
    "Interval",
    "Pipeline",
    "PriorEstimate",
    "Source",
    "Status",
    "Stream",
    "StreamTable",
    "TopKBlocks",
    "bbse",
    "bounds",
    "calibrate",
    "correct",
    "diagnose",
    "ebls",
    "estimate",
    "fmapls",
    "mapls",
    "metrics",
    "mlls",
    "pipeline",
    "rlls",
    "select",
    "simulate",
    "summarize",
]
