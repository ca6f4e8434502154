"""One reader for every kind of saved value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reprior._check import fail
from reprior.online.alarm import Alarm
from reprior.online.alarm_table import AlarmTable
from reprior.online.stream import Stream
from reprior.online.table import StreamTable
from reprior.pipelines.pipeline import Pipeline
from reprior.pipelines.watch import Watch
from reprior.rows.calibrated import Calibrator
from reprior.state import Key, kind_of, read_saved

SAVED: tuple[type[Any], ...] = (Alarm, AlarmTable, Calibrator, Pipeline, Stream, StreamTable, Watch)
LOADERS: dict[str, Any] = {kind.KIND: kind for kind in SAVED} | {"stream-job": Stream}


def load(
    path: str | Path | bytes, key: Key = None
) -> Pipeline | Watch | Stream | StreamTable | Alarm | AlarmTable | Calibrator:
    """Read a saved pipeline, watch, calibrator, stream, alarm, or table of streams or alarms.

    Nothing in the file is executed. A file that is damaged, forged or too new raises `InputError`.

    Parameters
    ----------
    path : str, Path or bytes
        A file that `save` or the command line wrote, or its bytes. For a state file of `reprior stream` the stream is
        returned.
    key : bytes, optional
        The key that signed it.

    Examples
    --------
    >>> from reprior import pipeline
    >>> load(pipeline(counts=[70, 30]).to_bytes()).source.prior
    array([0.7, 0.3])
    """
    data = read_saved(path, "load")
    kind = kind_of(data, "load", name=str(path) if isinstance(path, (str, Path)) else "path", key=key)
    if kind not in LOADERS:
        fail("load", "path", "hold one of " + ", ".join(LOADERS), repr(kind))
    return LOADERS[kind].from_bytes(data, key=key)  # type: ignore[no-any-return]
