"""Re-estimate a deployed classifier's class prior, in batch or on a stream, and correct its predictions."""

from reprior import metrics, simulate
from reprior._check import InputError
from reprior._types import Interval, PriorEstimate, Source, Status
from reprior.blocks import ArrayBlocks, Blocks, TopKBlocks, correct
from reprior.em import ebls, fmapls, mapls, mlls
from reprior.methods import ALIASES, METHODS, estimate
from reprior.moments import bbse, rlls
from reprior.source import summarize
from reprior.stream import ONLINE, Stream, StreamTable

__all__ = [
    "ALIASES",
    "METHODS",
    "ONLINE",
    "ArrayBlocks",
    "Blocks",
    "InputError",
    "Interval",
    "PriorEstimate",
    "Source",
    "Status",
    "Stream",
    "StreamTable",
    "TopKBlocks",
    "bbse",
    "correct",
    "ebls",
    "estimate",
    "fmapls",
    "mapls",
    "metrics",
    "mlls",
    "rlls",
    "simulate",
    "summarize",
]
