"""Re-estimate a deployed classifier's class prior, in batch or on a stream, and correct its predictions."""

from reprior import metrics, simulate
from reprior._check import InputError
from reprior._types import Interval, PriorEstimate, Source, Status
from reprior.blocks import ArrayBlocks, Blocks, TopKBlocks, correct
from reprior.source import summarize

__all__ = [
    "ArrayBlocks",
    "Blocks",
    "InputError",
    "Interval",
    "PriorEstimate",
    "Source",
    "Status",
    "TopKBlocks",
    "correct",
    "metrics",
    "simulate",
    "summarize",
]
