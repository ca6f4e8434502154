"""Ends of a stream: bytes as they arrive, bytes as they leave, each able to go on from a known place."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reprior._check import fail

READ = 1 << 18  # bytes at most at a time
POLL = 0.05  # seconds between two looks at a followed file
TAIL = 64  # bytes before the place where a run stopped, by which the next one knows that it has the right file
BINARY = getattr(os, "O_BINARY", 0)  # Windows would translate line ends


class Stop:
    """Ctrl-C and SIGTERM, heeded between two batches: at once while waiting, after the batch while working."""

    def __init__(self) -> None:
        self.asked = self.waiting = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, *_: Any) -> None:
        self.asked = True
        if self.waiting:
            raise KeyboardInterrupt


def check_tail(name: str, handle: int, end: int, tail: bytes, doing: str, remedy: str) -> None:
    """Refuse a file that does not hold, before byte `end`, what an earlier run saw there."""
    size = os.fstat(handle).st_size
    if size < end:
        fail("stream", name, f"still hold the {end} bytes that were {doing} it", f"{size} bytes", remedy=remedy)
    os.lseek(handle, end - len(tail), os.SEEK_SET)
    if os.read(handle, len(tail)) != tail:
        fail("stream", name, f"still hold what was {doing} it", f"other bytes before byte {end}", remedy=remedy)


def arriving(path: Path, offset: int, tail: bytes, *, follow: bool, replay: bool, stop: Stop) -> Iterator[bytes]:
    """Yield bytes of a file or pipe (`-`) from `offset` on, whatever there is, until it ends or `stop` is asked for.

    A pipe goes on where it is, unless with `replay` it starts again and its first `offset` bytes are passed over.
    `tail` are the last bytes before `offset`.
    """
    handle = 0 if str(path) == "-" else os.open(path, os.O_RDONLY | BINARY)
    regular = stat.S_ISREG(os.fstat(handle).st_mode)
    if regular and offset:
        check_tail(str(path), handle, offset, tail, "read of",
                   "Give the input of the earlier run, or name another state file to start anew")  # fmt: skip
        os.lseek(handle, offset, os.SEEK_SET)
    left = 0 if regular or not replay else offset
    while not stop.asked:
        try:
            stop.waiting = True
            data = os.read(handle, min(READ, left) if left else READ)
            if not data and follow and regular:
                time.sleep(POLL)
                continue
        except KeyboardInterrupt:
            return
        finally:
            stop.waiting = False
        if not data:
            return
        if left:
            left -= len(data)
        else:
            yield data


class Leaving:
    """Where bytes go: a file, cut to `written` bytes when a run goes on, or standard output (`-`)."""

    def __init__(self, path: Path, written: int | None, tail: bytes = b"", before: str = "") -> None:
        self.name = "standard output" if str(path) == "-" else str(path)
        self.path, self.written, self.handle, self.regular = path, written, -1, False
        if written and str(path) != "-":
            remedy = f"Give the output of the earlier run ({before}), or delete the state to start anew"
            if not path.exists():
                fail("stream", self.name, f"still hold the {written} bytes that were written to it", "no file",
                     remedy=remedy)  # fmt: skip
            with path.open("rb") as file:
                check_tail(self.name, file.fileno(), written, tail, "written to", remedy)

    def open(self) -> None:
        """Make the file, or go on with it: only once there is something to write, so that bad input changes nothing."""
        if self.handle >= 0:
            return
        self.handle = 1 if str(self.path) == "-" else os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
        about = os.fstat(self.handle)
        self.regular = stat.S_ISREG(about.st_mode)
        if self.regular and (self.handle != 1 or (self.written is not None and about.st_size >= self.written)):
            os.ftruncate(self.handle, self.written or 0)
        if self.regular:
            os.lseek(self.handle, 0, os.SEEK_END)

    def write(self, data: bytes) -> None:
        """Write all of it."""
        self.open()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self.handle, view) :]
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise OSError(error.errno, error.strerror, self.name) from error

    def sync(self) -> None:
        """Have it on disk, where it goes to a disk."""
        if self.regular:
            os.fsync(self.handle)
