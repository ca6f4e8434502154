"""Rows from the request path of a model server, sent to the service by a thread in the background.

`add` never waits and, by default, never raises: a model server must not fail because its monitoring does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reprior._check import (
    Frame,
    InputError,
    as_array,
    check_int,
    check_matrix,
    check_number,
    counted,
    fail,
    frame_of,
    row_fault,
)
from reprior._kernels.reference import SUM_TOLERANCE
from reprior._types import Matrix
from reprior.client.blocking import FIRST_PAUSE, LONGEST_PAUSE, Client
from reprior.client.bodies import Answer, Classes, ServiceError
from reprior.rows.blocks import by_name

log = logging.getLogger("reprior.client")
OVERHEAD = 300  # bytes that Python needs for one call of `add`, beside the numbers
LOG_SECONDS = 60.0  # at least between two log lines about dropped rows, or about failed callbacks
BAD_BLOCK = (400, 413, 415, 422)  # statuses that say that these very rows cannot be taken, now or later
ALL: weakref.WeakSet[Batches] = weakref.WeakSet()


class Abandoned(Exception):
    """`close` has waited long enough; what is still held is dropped."""


class Held(NamedTuple):
    """Rows (n, K) that wait, and the names of their columns, if any."""

    columns: tuple[Any, ...] | None
    rows: Matrix

    @property
    def size(self) -> int:
        return self.rows.nbytes + OVERHEAD


class Batches:
    """Collect samples and send them from a thread, `rows` at a time or after `seconds`, whichever comes first.

    The thread repeats each post until it counts once, however long an outage lasts, and waits for a stream that was
    deleted. If samples need more than `max_bytes`, the oldest are dropped. Nothing is corrected: use `Client.send` for
    that. Use it in a `with` block, or call `close`. It has its own connection and client name.

    Parameters
    ----------
    rows : int
        Number of samples in a batch.
    seconds : float
        Longest time that a sample waits for its batch.
    max_bytes : int
        Memory for waiting samples.
    strict : bool
        If True, `add` raises `reprior.InputError` for samples that cannot be sent; by default it drops them.
    on_answer : callable, optional
        Called in the thread with every `Answer`.
    on_drop : callable, optional
        Called with the number of dropped samples and the reason.

    Attributes
    ----------
    sent, dropped, waiting : int
        Samples that the service has counted, that will never be sent, and that wait or are being sent.
    error : str or None
        Why the last attempt failed; None after a success.
    """

    def __init__(
        self, client: Client, stream: str, *, rows: int = 256, seconds: float = 1.0, max_bytes: int = 64 << 20,
        strict: bool = False, on_answer: Callable[[Answer], None] | None = None,
        on_drop: Callable[[int, str], None] | None = None,
    ) -> None:  # fmt: skip
        self.stream, self.strict = stream, strict
        self.rows, self.max_bytes = check_int(rows, "Batches", "rows"), check_int(max_bytes, "Batches", "max_bytes")
        self.seconds = check_number(seconds, "Batches", "seconds", low=0, open_low=True)
        self.sent = self.dropped = 0
        self.error: str | None = None
        self._client = client
        self._on_answer, self._on_drop = on_answer, on_drop
        self._unlogged, self._logged_at = 0, -math.inf  # dropped rows that no log line has named yet
        self._failed_at = -math.inf  # when a failed callback was logged
        self._renew()
        ALL.add(self)

    def _renew(self) -> None:
        """Start with nothing held, as a forked child must: neither the thread nor the name is its own."""
        self._held: deque[Held] = deque()
        self._bytes = self._rows = 0  # of what is held
        self._since, self._due, self._busy = 0.0, False, 0
        self._closing = self._abandoned = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._classes: Classes | None = None  # of the stream, once the service has answered
        self._sender = self._client.patient_twin(self._pause, final=(*BAD_BLOCK, 404))

    # what the application calls

    @property
    def waiting(self) -> int:
        """Samples that wait, with those that are being sent."""
        return self._rows + self._busy

    def add(self, proba: Any) -> int:
        """Add probabilities (n, K), or (K,) of one sample, to send later; return how many were accepted.

        A row that is not valid is dropped alone.
        """
        try:
            names = None if self._classes is None else self._classes.names
            columns, values, _ = frame_of(proba, names, "Batches.add") or (None, proba, ())
            array = np.array(as_array(values, "Batches.add", "proba"))  # a copy: the caller may reuse its own
            rows = check_matrix(array[None] if array.ndim == 1 else array, "Batches.add", "proba")
            held = self._sendable(Held(None if columns is None else tuple(columns), rows), strict=self.strict)
        except Exception as error:  # an object that claims to be an array may raise anything
            if self.strict:
                raise
            cannot = f"Batches.add: `proba` cannot be read ({type(error).__name__})."
            self._drop(1, str(error) if isinstance(error, InputError) else cannot)
            return 0
        return self._hold(held) if len(held.rows) else 0

    def flush(self, timeout: float = 10.0) -> bool:
        """Send all waiting samples; return whether the service has counted them within `timeout` seconds."""
        end = time.monotonic() + timeout
        with self._changed:
            self._due = True
            self._changed.notify_all()
            while self.waiting and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self.waiting

    def close(self, timeout: float = 10.0) -> bool:
        """Send all waiting samples within `timeout` seconds and end the thread; return whether all were sent."""
        done = self.flush(timeout)
        with self._changed:
            self._closing, self._abandoned = True, not done
            self._changed.notify_all()
            left, self._held = self.waiting, deque()
            self._bytes = self._rows = self._busy = 0
        if left:
            self._drop(left, f"The service had not counted them {timeout:g} seconds after `close`.")
        if self._thread is not None and done:
            self._thread.join(timeout)
        return done

    async def aflush(self, timeout: float = 10.0) -> bool:
        """Do what `flush` does, without blocking the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    async def aclose(self, timeout: float = 10.0) -> bool:
        """Do what `close` does, without blocking the event loop."""
        return await asyncio.to_thread(self.close, timeout)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Batches:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # what is held

    def _sendable(self, held: Held, *, strict: bool = False) -> Held:
        """Return the rows that the stream can take, in the order of its classes once these are known.

        Rows that are no probabilities (or not finite, if the stream takes logits) are dropped, or refused if `strict`.
        """
        (columns, rows), classes = held, self._classes
        if classes is not None:
            rows = np.asarray(rows if columns is None else by_name(Frame(columns, rows), classes.names, "Batches.add"))
            columns = None
            if rows.shape[1] != classes.count:
                rule = f"have {classes.count} columns, one per class of the stream"
                fail("Batches.add", "proba", rule, rows.shape[1])
        good = np.isfinite(rows).all(axis=1)
        if classes is not None and not classes.logits:
            with np.errstate(invalid="ignore", over="ignore"):
                sums = rows.sum(axis=1, dtype=np.float64)
                good &= (rows >= 0).all(axis=1) & (np.abs(sums - 1) <= SUM_TOLERANCE)
        if good.all():
            return Held(columns, rows)
        fault = row_fault(rows.astype(np.float64))
        reason = f"must {fault.rule}; got {fault.value}" if fault else "must contain only finite numbers"
        if strict:
            raise InputError(f"Batches.add: `proba` {reason}.")
        self._drop(int((~good).sum()), f"Batches.add: `proba` {reason}.")
        return Held(columns, rows[good])

    def _hold(self, held: Held) -> int:
        """Let rows wait, in parts of at most one batch, and return how many; the oldest go if too many wait."""
        taken, over = len(held.rows), 0
        with self._changed:
            closed = self._closing
            if closed:
                over, taken = taken, 0
            elif not self._held:
                self._since = time.monotonic()
            at_once = self._at_once(held.rows)
            for first in range(0, taken, at_once):
                self._held.append(Held(held.columns, held.rows[first : first + at_once]))
                self._bytes += self._held[-1].size
            self._rows += taken
            while self._bytes > self.max_bytes and len(self._held) > 1:
                over += len(self._pop())
            if not closed and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reprior-batches", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the process has no thread left, or is about to end: try at the next `add`
                    self._thread = None
            self._changed.notify_all()
        if over:
            self._drop(over, "The batches are closed." if closed else f"More than {self.max_bytes} bytes wait.")
        return taken

    def _at_once(self, rows: Matrix) -> int:
        """Return how many rows like these one batch takes: no more than one post, or than may wait."""
        waiting = (self.max_bytes - OVERHEAD) // max(1, rows[:1].nbytes)
        return max(1, min(self.rows, self._sender.rows_at_once(rows), waiting))

    def _pop(self) -> Matrix:
        """Remove and return the oldest rows."""
        oldest = self._held.popleft()
        self._bytes -= oldest.size
        self._rows -= len(oldest.rows)
        return oldest.rows

    def _drop(self, rows: int, reason: str) -> None:
        """Count rows that will not be sent, tell whoever asked to know, and log at most one line per minute."""
        with self._changed:
            self.dropped += rows
            self._unlogged += rows
            silent = time.monotonic() - self._logged_at < LOG_SECONDS
            unlogged = self._unlogged
            if not silent:
                self._unlogged, self._logged_at = 0, time.monotonic()
        if not silent:
            about = f"{counted(unlogged, 'sample')} dropped, {self.dropped:,} in all"
            log.warning("stream %s: %s. %s", self.stream, about, reason)
        self._call(self._on_drop, rows, reason)

    def _call(self, work: Callable[..., None] | None, *args: Any) -> None:
        """Run a function of the application; what it raises ends nothing and is logged at most once per minute."""
        try:
            if work is not None:
                work(*args)
        except Exception:
            if time.monotonic() - self._failed_at >= LOG_SECONDS:
                self._failed_at = time.monotonic()
                log.exception("stream %s: a callback of Batches failed", self.stream)

    # the thread

    def _run(self) -> None:
        with self._sender:
            while (block := self._next()) is not None:
                try:
                    self._deliver(block)
                except Abandoned:
                    return
                except Exception as error:
                    log.exception("stream %s: a batch failed", self.stream)
                    self._drop(len(block.rows), f"{type(error).__name__} in the sending thread.")
                finally:
                    with self._changed:
                        self._busy = 0
                        self._changed.notify_all()

    def _next(self) -> Held | None:
        """Wait for the next block of rows and return it; None after `close`, when nothing is held any more."""
        with self._changed:
            while not self._closing:
                left = self._since + self.seconds - time.monotonic()
                if self._held and (self._due or self._rows >= self.rows or left <= 0):
                    return self._block()
                self._due = self._due and bool(self._held)
                self._changed.wait(left if self._held else None)
        return None

    def _block(self) -> Held:
        """Return the oldest rows with the next ones that are alike and fit into the same batch."""
        columns, parts = self._held[0].columns, [self._pop()]
        self._busy = len(parts[0])
        while self._held:
            after = self._held[0]
            alike = after.columns == columns and after.rows.shape[1] == parts[0].shape[1]
            if not alike or self._busy + len(after.rows) > self._at_once(parts[0]):
                break
            parts.append(self._pop())
            self._busy += len(parts[-1])
        self._since = time.monotonic()
        return Held(columns, np.concatenate(parts))

    def _deliver(self, block: Held) -> None:
        """Send a block, whatever it takes; rows that the stream cannot take are dropped."""
        pause = FIRST_PAUSE
        while True:
            try:
                self._classes = self._sender.classes_of(self.stream, again=self._classes is None)
                rows = self._sendable(block).rows
                if len(rows):
                    answer = self._sender.send(self.stream, rows, correct=False)
                    with self._changed:
                        self.sent += len(rows)
                        self.dropped -= len(rows) * self._abandoned  # `close` had given them up
                    if self.error is not None:
                        log.info("stream %s: the service takes rows again", self.stream)
                    self.error = None
                    self._call(self._on_answer, answer)
                return
            except InputError as error:
                return self._drop(len(block.rows), str(error))
            except ServiceError as error:
                self._classes = None  # the stream may be made again, with other classes
                if error.status != 404:
                    return self._drop(len(block.rows), str(error))
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, unless `close` says not to."""
        first, self.error = self.error is None, self._sender.problem
        if first:
            log.warning("stream %s: %s %s rows wait.", self.stream, self.error, self.waiting)
        end = time.monotonic() + seconds
        with self._changed:
            while not self._abandoned and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._abandoned:
                raise Abandoned


if hasattr(os, "register_at_fork"):  # a forked child has batches of its own
    os.register_at_fork(after_in_child=lambda: [*map(Batches._renew, list(ALL))])
