"""Re-estimate a deployed classifier's class prior, in batch or on a stream, and correct its predictions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprior import simulate
    from reprior._check import InputError
    from reprior._types import Interval, Source, Status
    from reprior.assess import bounds, metrics
    from reprior.assess.compare import compare
    from reprior.assess.diagnose import Diagnosis, diagnose
    from reprior.assess.query import query
    from reprior.batch.fmapls import fmapls
    from reprior.batch.mapls import mapls
    from reprior.batch.mlls import mlls
    from reprior.batch.moments import bbse, rlls
    from reprior.batch.registry import ALIASES, METHODS, estimate
    from reprior.estimates.estimate import PriorEstimate
    from reprior.model.ebls import ebls
    from reprior.model.groups import groups
    from reprior.online.alarm import Alarm
    from reprior.online.alarm_table import AlarmTable
    from reprior.online.registry import ONLINE
    from reprior.online.stream import Stream
    from reprior.online.table import StreamTable
    from reprior.pipelines import calibrate
    from reprior.pipelines.fit import pipeline
    from reprior.pipelines.load import load
    from reprior.pipelines.pipeline import Pipeline
    from reprior.pipelines.select import select
    from reprior.pipelines.source import summarize
    from reprior.pipelines.watch import Watch
    from reprior.rows.blocks import ArrayBlocks, Blocks, TopKBlocks
    from reprior.rows.correction import correct

_HOMES = {  # public names are imported when they are first used: `reprior --help` needs none of them
    "simulate": (), "assess.bounds": (), "assess.metrics": (), "pipelines.calibrate": (), "_check": ("InputError",),
    "_types": ("Interval", "Source", "Status"), "estimates.estimate": ("PriorEstimate",),
    "assess.compare": ("compare",), "assess.diagnose": ("Diagnosis", "diagnose"), "assess.query": ("query",),
    "model.ebls": ("ebls",), "model.groups": ("groups",), "batch.fmapls": ("fmapls",), "batch.mapls": ("mapls",),
    "batch.mlls": ("mlls",), "batch.moments": ("bbse", "rlls"),
    "batch.registry": ("ALIASES", "METHODS", "estimate"), "online.alarm": ("Alarm",),
    "online.alarm_table": ("AlarmTable",), "online.registry": ("ONLINE",), "online.stream": ("Stream",),
    "online.table": ("StreamTable",), "pipelines.fit": ("pipeline",), "pipelines.load": ("load",),
    "pipelines.pipeline": ("Pipeline",), "pipelines.watch": ("Watch",), "pipelines.select": ("select",),
    "pipelines.source": ("summarize",), "rows.blocks": ("ArrayBlocks", "Blocks", "TopKBlocks"),
    "rows.correction": ("correct",),
}  # fmt: skip  # one without names is a module of the public interface itself


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("reprior")
    for home, names in _HOMES.items():
        if name in (names or home.split(".")[-1:]):
            module = import_module(f"reprior.{home}")
            globals()[name] = value = getattr(module, name) if names else module
            return value
    raise AttributeError(f"module 'reprior' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


__all__ = [
    "ALIASES", "METHODS", "ONLINE", "Alarm", "AlarmTable", "ArrayBlocks", "Blocks", "Diagnosis", "InputError",
    "Interval", "Pipeline", "PriorEstimate", "Source", "Status", "Stream", "StreamTable", "TopKBlocks", "Watch", "bbse",
    "bounds", "calibrate", "compare", "correct", "diagnose", "ebls", "estimate", "fmapls", "groups",
    "load", "mapls", "metrics", "mlls", "pipeline", "query", "rlls", "select", "simulate", "summarize",
]  # fmt: skip
