"""Both ends of a stream: bytes as they arrive and bytes as they leave. Either can continue from a known place."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from reprior._check import fail
from reprior.state import lock

READ = 1 << 18  # bytes at most at a time
POLL = 0.05  # seconds between two looks at a followed file
TAIL = 64  # bytes before the place where a run stopped, by which the next one knows that it has the right file
BINARY = getattr(os, "O_BINARY", 0)  # Windows would translate line ends


class Stop:
    """Ctrl-C and SIGTERM, heeded between two batches: at once while waiting, after the batch while working."""

    def __init__(self) -> None:
        self.asked = self.waiting = False

    def __enter__(self) -> None:
        self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, *_: Any) -> None:
        self.asked = True
        if self.waiting:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def tail_of(before: bytes, data: bytes) -> bytes:
    """Return the last bytes of what has passed: the tail `before`, and then `data`."""
    return (before + data[-TAIL:])[-TAIL:]


def check_tail(name: str, handle: int, end: int, tail: bytes, doing: str, remedy: str) -> None:
    """Refuse a file that does not hold, before byte `end`, what an earlier run saw there."""
    size = os.fstat(handle).st_size
    if size < end:
        fail("stream", name, f"still hold the {end} bytes that were {doing} it", f"{size} bytes", remedy=remedy)
    if not holds(handle, end, tail):
        fail("stream", name, f"still hold what was {doing} it", f"other bytes before byte {end}", remedy=remedy)


def holds(handle: int, end: int, tail: bytes) -> bool:
    """Return whether a file holds these bytes before byte `end`; it is read on from there."""
    os.lseek(handle, end - len(tail), os.SEEK_SET)
    return os.read(handle, len(tail)) == tail and os.fstat(handle).st_size >= end


def mark_of(about: os.stat_result) -> list[int]:
    """Return what a file keeps when it is renamed."""
    return [about.st_dev, about.st_ino]


class Arriving:
    """Bytes of a file or pipe (`-`) from `offset` on, behind the bytes `tail`, until it ends or `stop` is asked for.

    A pipe continues where it is. A file that is followed may be replaced or truncated: the old one, with this `mark`,
    is read to its end, then None comes, then the new one.
    """

    def __init__(
        self, path: Path, offset: int, tail: bytes, mark: list[int] | None, *, follow: bool, stop: Stop
    ) -> None:
        self.path, self.at, self.tail, self.stop = path, offset, tail, stop
        self.handle = 0 if str(path) == "-" else os.open(path, os.O_RDONLY | BINARY)
        about = os.fstat(self.handle)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self.regular, self.mark = stat.S_ISREG(about.st_mode), mark_of(about)
        self.follow = follow and (self.regular or (stat.S_ISFIFO(about.st_mode) and self.handle != 0))
        if self.regular and self.follow and mark not in (None, self.mark) and (old := self.find(mark)):
            self.change(old)  # it was renamed while nobody followed it
            self.at, self.tail = offset, tail
        if self.regular and offset:
            check_tail(str(path), self.handle, offset, tail, "read of",
                       "Give the input of the earlier run, or name another state file to start again")  # fmt: skip

    def find(self, mark: list[int] | None) -> Path | None:
        """Return the file beside the followed one that is the one marked, under whatever name, and holds the tail."""
        for entry in os.scandir(self.path.parent):
            if entry.name.startswith(self.path.name) and entry.is_file() and mark_of(entry.stat()) == mark:
                with open(entry.path, "rb") as file:
                    if holds(file.fileno(), self.at, self.tail):
                        return Path(entry.path)
        return None

    def change(self, path: Path) -> None:
        """Continue with another file, from its start."""
        if self.handle:
            os.close(self.handle)
        self.handle = os.open(path, os.O_RDONLY | BINARY)
        self.mark, self.at, self.tail = mark_of(os.fstat(self.handle)), 0, b""

    def successor(self) -> Path | None:
        """Return the file that took the place of the one being read, once something is written there.

        Whoever writes has then left the old one. Of several that came since, as .2 and .1, the oldest is next.
        """
        try:
            about = os.stat(self.path)
        except OSError:  # renamed, and not there again yet
            return None
        if mark_of(about) == self.mark or not about.st_size or not stat.S_ISREG(about.st_mode):
            return None
        now, numbered = os.fstat(self.handle).st_mtime_ns, re.compile(re.escape(self.path.name) + r"[.-]\d+")
        later = [
            (entry.stat().st_mtime_ns, entry.path)
            for entry in os.scandir(self.path.parent)
            if numbered.fullmatch(entry.name) and entry.is_file() and mark_of(entry.stat()) != self.mark
        ]
        return Path(min([pair for pair in later if pair[0] > now], default=(0, self.path))[1])

    def __iter__(self) -> Iterator[bytes | None]:
        while not self.stop.asked:
            try:
                self.stop.waiting = True
                piece = self.next()
            except KeyboardInterrupt:
                return
            finally:
                self.stop.waiting = False
            if piece == b"":
                return
            yield piece

    def next(self) -> bytes | None:
        """Return the next bytes that arrive: b"" at the end, None if another file begins."""
        ended = False
        while True:
            new_file = None
            if ended and self.regular:
                if not holds(self.handle, self.at, self.tail):
                    click.echo(f"{self.path} was truncated; reading it again from its start.", err=True)
                    os.lseek(self.handle, 0, os.SEEK_SET)
                    self.at, self.tail = 0, b""
                    return None
                new_file = self.successor()  # before the last look at this one
            data = os.read(self.handle, READ)
            if data:
                self.at, self.tail = self.at + len(data), tail_of(self.tail, data)
                return data
            elif not self.follow:
                return b""
            elif new_file is not None:
                self.change(new_file)
                return None
            else:
                ended = True
                time.sleep(POLL)

    def close(self) -> None:
        if self.handle:
            os.close(self.handle)
            self.handle = 0


class Leaving:
    """Where bytes go: a file, cut to `written` bytes when a run continues, or standard output (`-`)."""

    def __init__(self, path: Path, written: int | None, tail: bytes = b"", before: str = "") -> None:
        self.name = "standard output" if str(path) == "-" else str(path)
        self.path, self.written, self.handle, self.regular = path, written, -1, False
        if written and str(path) != "-":
            remedy = f"Give the output of the earlier run ({before}), or delete the state to start again"
            if not path.exists():
                fail("stream", self.name, f"still hold the {written} bytes that were written to it", "no file",
                     remedy=remedy)  # fmt: skip
            with path.open("rb") as file:
                check_tail(self.name, file.fileno(), written, tail, "written to", remedy)

    def open(self) -> None:
        """Make the file, or continue it: only once there is something to write, so that bad input changes nothing."""
        if self.handle >= 0:
            return
        self.handle = 1 if str(self.path) == "-" else os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
        about = os.fstat(self.handle)
        self.regular = stat.S_ISREG(about.st_mode)
        if self.regular and self.handle != 1 and not lock(self.handle):
            self.close()
            raise OSError(errno.EBUSY, "another run is writing it; wait for its end, or name another file", self.name)
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

    def close(self) -> None:
        """Let go of the file."""
        if self.handle > 2:
            os.close(self.handle)
            self.handle = -1
