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
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reprior._check import Frame, InputError, as_array, check_int, check_matrix, check_number, fail, frame_of, row_fault
from reprior._kernels.reference import SUM_TOLERANCE
from reprior._types import Matrix
from reprior.client.blocking import FIRST_PAUSE, LONGEST_PAUSE, Client
from reprior.client.bodies import Answer, Classes, ServiceError
from reprior.rows.blocks import by_name

log = logging.getLogger("reprior.client")
OVERHEAD = 300  # bytes that Python needs for one call of `add`, beside the numbers
LOG_SECONDS = 60.0  # at least between two log lines about dropped rows
BAD_BLOCK = (400, 413, 415, 422)  # statuses that say that these very rows cannot be taken, now or later
ALL: weakref.WeakSet[Batches] = weakref.WeakSet()


class Abandoned(Exception):
    """`close` has waited long enough; what is still held is dropped."""


class Sender(Client):
    """The client of one `Batches`: it repeats whatever may be taken later, without end."""

    def _repeats(self, status: int) -> bool:
        return status not in (*BAD_BLOCK, 404)


@dataclass(slots=True)
class Held:
    """Rows (n, K) of one `add`, and the names of their columns, if any."""

    columns: tuple[Any, ...] | None
    rows: Matrix

    @property
    def size(self) -> int:
        return self.rows.nbytes + OVERHEAD

    def continues(self, other: Held) -> bool:
        """Return whether rows may be sent in one block with those of another `add`."""
        return self.rows.shape[1] == other.rows.shape[1] and self.columns == other.columns


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
        client = self._client
        self._sender = Sender(client.url, token=client._token, name=f"{client.name}-{uuid.uuid4().hex[:8]}",
                              timeout=client.timeout, max_body=client.max_body, sleep=self._pause)  # fmt: skip
        self._sender.patience, self._sender._msgpack = math.inf, client._msgpack

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
            held, n_bad, reason = self._checked(proba)
            if n_bad and self.strict:
                raise InputError(reason)
        except Exception as error:  # an object that claims to be an array may raise anything
            if self.strict:
                raise
            cannot = f"Batches.add: `proba` cannot be read ({type(error).__name__})."
            self._drop(1, str(error) if isinstance(error, InputError) else cannot)
            return 0
        if n_bad:
            self._drop(n_bad, reason)
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

    # checks

    def _checked(self, proba: Any) -> Sendable:
        """Return the rows of one `add` that can be sent, as far as is known."""
        names = None if self._classes is None else self._classes.names
        columns, values, _ = frame_of(proba, names, "Batches.add") or (None, proba, ())
        array = np.array(as_array(values, "Batches.add", "proba"))  # a copy: the caller may reuse its own
        rows = check_matrix(array[None] if array.ndim == 1 else array, "Batches.add", "proba")
        return sendable(Held(None if columns is None else tuple(columns), rows), self._classes)

    # what is held

    def _hold(self, held: Held) -> int:
        most = max(1, (self.max_bytes - OVERHEAD) // max(1, held.rows[:1].nbytes))
        over = max(0, len(held.rows) - most)
        held.rows, taken = held.rows[over:], len(held.rows)
        with self._changed:
            if self._closing:
                over, taken = taken, 0
            else:
                if not self._held:
                    self._since = time.monotonic()
                self._held.append(held)
                self._rows += len(held.rows)
                self._bytes += held.size
                while self._bytes > self.max_bytes and len(self._held) > 1:
                    over += self._pop()
                self._start()
                self._changed.notify_all()
            closed = self._closing
        if over:
            self._drop(over, "The batches are closed." if closed else f"More than {self.max_bytes} bytes wait.")
        return taken

    def _pop(self) -> int:
        """Remove the oldest rows; return how many they are."""
        oldest = self._held.popleft()
        self._bytes -= oldest.size
        self._rows -= len(oldest.rows)
        return len(oldest.rows)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="reprior-batches", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process has no thread left, or is about to end: try at the next `add`
                self._thread = None

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
            log.warning("stream %s: %s rows dropped, %s in all. %s", self.stream, unlogged, self.dropped, reason)
        self._call(self._on_drop, rows, reason)

    def _call(self, work: Callable[..., None] | None, *args: Any) -> None:
        """Run a function of the application; what it raises is logged and ends nothing."""
        try:
            if work is not None:
                work(*args)
        except Exception:
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
        """Wait for the next block and return it; None when all is sent and `close` was called."""
        with self._changed:
            while True:
                left = self._since + self.seconds - time.monotonic()
                if self._held and (self._due or self._closing or self._rows >= self.rows or left <= 0):
                    break
                if self._closing:
                    return None
                if not self._held:
                    self._due = False
                self._changed.wait(left if self._held else None)
            first, parts = self._held[0], []
            most = min(self.rows, self._sender.rows_at_once(first.rows))
            room = most
            while room and self._held and self._held[0].continues(first):
                rows = self._held[0].rows
                parts.append(rows[:room])
                room -= len(parts[-1])
                self._pop()
                if len(rows) > len(parts[-1]):  # the rest stays the oldest
                    rest = Held(first.columns, rows[len(parts[-1]) :])
                    self._held.appendleft(rest)
                    self._bytes += rest.size
                    self._rows += len(rest.rows)
            self._busy = most - room
            if self._held:
                self._since = time.monotonic()
            return Held(first.columns, np.concatenate(parts))

    def _deliver(self, block: Held) -> None:
        """Send a block, whatever it takes; rows that the stream cannot take are dropped."""
        pause = FIRST_PAUSE
        while True:
            try:
                classes = self._classes = self._sender.classes_of(self.stream)
                held, n_bad, reason = sendable(block, classes)
                if n_bad:
                    self._drop(n_bad, reason)
                if len(held.rows):
                    self._sent(self._sender.send(self.stream, held.rows, correct=False), len(held.rows))
                return
            except InputError as error:
                self._drop(len(block.rows), str(error))
                return
            except ServiceError as error:
                self._classes = None  # the stream may be made again, with other classes
                self._sender._classes.clear()
                if error.status != 404:
                    self._drop(len(block.rows), str(error))
                    return
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _sent(self, answer: Answer, rows: int) -> None:
        with self._changed:
            self.sent += rows
            self.dropped -= rows * self._abandoned  # `close` had given them up
            again, self.error = self.error, None
        if again is not None:
            log.info("stream %s: the service takes rows again", self.stream)
        self._call(self._on_answer, answer)

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, unless `close` says not to."""
        with self._changed:
            first, self.error = self.error is None, self._sender.problem
            waiting, end = self.waiting, time.monotonic() + seconds
        if first:
            log.warning("stream %s: %s %s rows wait.", self.stream, self.error, waiting)
        with self._changed:
            while not self._abandoned and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._abandoned:
                raise Abandoned


class Sendable(NamedTuple):
    """Rows that a stream can take, how many others there were, and what is wrong with the first of them."""

    held: Held
    n_bad: int = 0
    reason: str = ""


def sendable(held: Held, classes: Classes | None) -> Sendable:
    """Return finite rows, and only probabilities if the stream takes those, in the order of its `classes` if they are
    known; rows of another number of classes are refused."""
    rows, columns = held.rows, held.columns
    if classes is not None:
        rows = np.asarray(rows if columns is None else by_name(Frame(columns, rows), classes.names, "Batches.add"))
        columns = None
        if rows.shape[1] != classes.count:
            fail("Batches.add", "proba", f"have {classes.count} columns, one per class of the stream", rows.shape[1])
    good = np.isfinite(rows).all(axis=1)
    if classes is not None and not classes.logits:
        with np.errstate(invalid="ignore", over="ignore"):
            sums = rows.sum(axis=1, dtype=np.float64)
            good &= (rows >= 0).all(axis=1) & (np.abs(sums - 1) <= SUM_TOLERANCE)
    if good.all():
        return Sendable(Held(columns, rows))
    fault = row_fault(rows.astype(np.float64))
    reason = f"must {fault.rule}; got {fault.value}" if fault else "must contain only finite numbers"
    return Sendable(Held(columns, rows[good]), int((~good).sum()), f"Batches.add: `proba` {reason}.")


def renew_all() -> None:
    """Give a forked child batches of its own."""
    for batches in list(ALL):
        batches._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_all)
