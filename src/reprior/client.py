"""A client of the service: numbered posts that are repeated until they count once, and batches sent from a thread.

It needs nothing but NumPy; with msgpack installed rows travel as raw bytes, without it as JSON.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from reprior._check import check_choice, check_int, check_matrix, check_number, fail, in_order, names_of, own_names
from reprior._labels import same_rows
from reprior._types import Matrix, Vector
from reprior.rows.blocks import by_name
from reprior.rows.correction import as_given

AGAIN = (408, 425, 429, 500, 502, 503, 504)  # the server, or what is before it, may take the same post later
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between two attempts
PATIENCE, AT_FIRST = 120.0, 5.0  # seconds; the second where nothing has ever answered: the address may be wrong


class ServiceError(Exception):
    """The service refused, with its sentence, or could not be reached in time; `status` is 0 then."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service says to rows: themselves under the new prior (n, K), the prior (K,), and how many it has seen.

    The corrected rows of a DataFrame are one, with its own columns.

    `repeated` says that an earlier attempt had counted already, and `counted_at` how many samples there were then;
    `gap` are the first and last number that never arrived before this one.
    """

    proba: Matrix | None = field(repr=False)
    prior: Vector = field(repr=False)
    n: int
    repeated: bool = False
    counted_at: int | None = None
    gap: tuple[int, int] | None = None


class Client:
    """Speaks to one service over one connection; threads may share it, and their posts go one after the other.

    Rows with names, a DataFrame or Series, are matched to the stream's classes by name. The client asks the service for
    those once.

    Parameters
    ----------
    url : the address, such as ``http://127.0.0.1:8733``.
    token : the bearer token, if the service wants one.
    name : what the service knows this client by; a new random name if not given. Posts carry numbers under it, so two
        clients must not share one, and one that goes on under its old name must know its last numbers (`seqs`).
    timeout : seconds that one attempt may take.
    patience : seconds after which a post is given up. If it is not given they are 120, and 5 where nothing has
        ever answered at the address.

    >>> client = Client("http://127.0.0.1:8733", token="secret-token")
    >>> client.url
    'http://127.0.0.1:8733'
    """

    def __init__(
        self, url: str, *, token: str | None = None, name: str | None = None, timeout: float = 30.0,
        patience: float | None = None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail("Client", "url", "be an http or https address", repr(url))
        self.url, self.name = url.rstrip("/"), name or f"python-{uuid.uuid4().hex[:12]}"
        self.timeout = check_number(timeout, "Client", "timeout", low=0, open_low=True)
        self.patience = None if patience is None else check_number(patience, "Client", "patience", low=0)
        self.seqs: dict[str, int] = {}  # the last number used for each stream
        self._classes: dict[str, tuple[str, ...] | None] = {}  # of each stream, as far as asked for
        self._reached = False  # whether the service has ever answered
        self._path, self._token, self._sleep = parts.path.rstrip("/"), token, sleep
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=self.timeout)
        self._lock = threading.RLock()
        try:
            import msgpack
        except ImportError:
            msgpack = None
        self._msgpack = msgpack

    def __repr__(self) -> str:
        return f"Client({self.url!r}, name={self.name!r})"

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # streams

    def put(
        self, stream: str, source: Any = None, *, classes: Any = None, method: str | None = None, alarm: Any = None,
        heldout: tuple[Any, Any] | None = None, saved: Any = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Make a stream, and return what the service says of it; one that is there already, made of the same, stays.

        Parameters
        ----------
        source : class counts or shares (K,); or a Series or dict from class to count, which names the classes in its
            own order if there are no `classes` and no `heldout`; or what `saved` takes.
        classes : the names of the classes (K,), in the order of the columns.
        method : the online method; "online-ebls" if not given. `options` are the method's.
        alarm : False, True or a dict of options of `reprior.Alarm`.
        heldout : held-out outputs (n, K) and their labels (n,), to calibrate by, and for alarm and diagnosis. A
            DataFrame's columns name the classes.
        saved : a Pipeline or Stream, or one that was saved, as bytes, instead of source, classes and heldout.
        """
        if isinstance(source, (bytes, bytearray)) or hasattr(source, "to_bytes"):
            source, saved = None, source
        if saved is not None:
            if source is not None or classes is not None or heldout is not None:
                fail("Client.put", "saved", "be given without source, classes and heldout, because it has them", "both")
            saved = saved.to_bytes() if hasattr(saved, "to_bytes") else bytes(saved)
            given = {"method": method, "options": json.dumps(options) if options else None,
                     "alarm": None if alarm is None else json.dumps(alarm)}  # fmt: skip
            query = urlencode({key: value for key, value in given.items() if value is not None})
            path = self._at(stream) + (query and f"?{query}")
            return self._made(stream, self._asked("PUT", path, saved, "application/octet-stream"))
        caller = "Client.put"
        told = None if heldout is None else own_names(heldout[0], classes)
        classes = told if classes is None else classes
        if classes is None and heldout is None:
            classes = names_of(source)[1]  # no rows yet whose columns might have another order
        names = None if classes is None else tuple(str(name) for name in classes)
        if source is not None:
            numbers, names = in_order(source, caller, "source", names)
            source = numbers.tolist()
        body: dict[str, Any] = {"source": source, "classes": names, "method": method, "alarm": alarm,
                                "options": options or None}  # fmt: skip
        if heldout is not None:
            same_rows(*heldout, caller)
            rows = by_name(heldout[0], None if told is None else names, caller)
            body["heldout"] = {"proba": plain(rows), "y": plain(heldout[1])}
        try:
            said = json.dumps({key: value for key, value in body.items() if value is not None}).encode()
        except TypeError as error:
            fail(caller, "options", "be what JSON can hold", str(error),
                 remedy="A Pipeline or Stream is given as `source` or `saved`")  # fmt: skip
        return self._made(stream, self._asked("PUT", self._at(stream), said, "application/json"))

    def _made(self, stream: str, told: dict[str, Any]) -> dict[str, Any]:
        """Return what the service says of a stream, once its classes are noted."""
        self._classes[stream] = tuple(told["classes"]) if told["named"] else None
        return told

    def _ordered(self, stream: str, proba: Any, caller: str) -> Any:
        """Return rows in the order of the stream's classes by name, where they have names."""
        if not isinstance(proba, Mapping) and not hasattr(proba, "to_numpy"):
            return proba
        if stream not in self._classes:
            self._made(stream, self._asked("GET", self._at(stream) + "?diagnosis=0"))
        return by_name(proba, self._classes[stream], caller)

    def get(self, stream: str) -> dict[str, Any]:
        """Return what the service knows of a stream: prior, interval, alarm, diagnosis."""
        return self._asked("GET", self._at(stream))

    def delete(self, stream: str) -> None:
        """Remove a stream with all that it has learned."""
        body = json.dumps({"confirm": stream}).encode()
        self._asked("DELETE", self._at(stream), body, "application/json")
        self.seqs.pop(stream, None)
        self._classes.pop(stream, None)

    def alarms(self, stream: str) -> list[dict[str, Any]]:
        """Return the alarms of a stream, the newest first; one that nobody has acknowledged is open."""
        found: list[dict[str, Any]] = self._asked("GET", self._at(stream, "alarms"))["alarms"]
        return found

    def acknowledge(self, stream: str, alarm: Any, *, by: str, note: str = "", next: str = "restart") -> dict[str, Any]:
        """Say who has dealt with an open alarm, one of `alarms` or its number; return what the service says of it.

        Parameters
        ----------
        by : who.
        note : what was found.
        next : "restart" the test against the same reference, or "accept" the rows since the alarm as the new normal.
        """
        number = alarm["id"] if isinstance(alarm, Mapping) else check_int(alarm, "Client.acknowledge", "alarm")
        body = json.dumps({"by": by, "note": note, "next": next}).encode()
        return self._asked("POST", self._at(stream, f"alarms/{number}/acknowledge"), body, "application/json")

    def send(self, stream: str, proba: Any, *, correct: bool = True) -> Answer:
        """Let a stream learn rows (n, K), and return them corrected; the post is repeated until it counts once."""
        rows = check_matrix(self._ordered(stream, proba, "Client.send"), "Client.send", "proba")
        told = self._post(stream, "samples", rows, {} if correct else {"correct": False})
        if told.proba is None:
            return told
        return replace(told, proba=as_given(told.proba, proba, self._classes.get(stream)))

    def label(self, stream: str, proba: Any, y: Any) -> Answer:
        """Give the labels (n,), columns or names, of rows (n, K) that were sent before."""
        same_rows(proba, y, "Client.label")
        rows = check_matrix(self._ordered(stream, proba, "Client.label"), "Client.label", "proba")
        return self._post(stream, "labels", rows, {"y": plain(y)})

    def batches(self, stream: str, **options: Any) -> Batches:
        """Return a `Batches` that gathers rows of this stream and sends them from a thread."""
        return Batches(self, stream, **options)

    def _at(self, stream: str, what: str = "") -> str:
        return f"/streams/{quote(stream, safe='')}" + (what and f"/{what}")

    def _post(self, stream: str, what: str, rows: Matrix, more: dict[str, Any]) -> Answer:
        with self._lock:
            seq = self.seqs[stream] = self.seqs.get(stream, 0) + 1
            body: dict[str, Any] = {"client": self.name, "seq": seq, **more}
            single = rows.dtype == np.float32
            if self._msgpack is not None:
                kind = "application/msgpack"
                raw = np.ascontiguousarray(rows, "<f4" if single else "<f8")
                packed = self._msgpack.packb({**body, "proba": raw.tobytes(), "dtype": "f4" if single else "f8"})
            else:
                kind, packed = "application/json", json.dumps({**body, "proba": rows.tolist()}).encode()
            told = self._asked("POST", self._at(stream, what), packed, kind)
        corrected = told.get("proba")
        if isinstance(corrected, bytes):
            corrected = np.frombuffer(corrected, "<f4" if single else "<f8").reshape(rows.shape)
        elif corrected is not None:
            corrected = np.array(corrected, rows.dtype).reshape(rows.shape)
        gap = told.get("gap")
        return Answer(corrected, np.array(told["prior"]), told["n"], told.get("repeated", False),
                      told.get("counted_at"), gap and (gap["first"], gap["last"]))  # fmt: skip

    def _asked(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> dict[str, Any]:
        """Return the answer to a request that may be repeated without harm, after as many attempts as it takes."""
        headers = {"Accept": "application/msgpack" if "msgpack" in kind else "application/json"}
        if body is not None:
            headers["Content-Type"] = kind
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        started, pause, patience = time.monotonic(), FIRST_PAUSE, PATIENCE if self.patience is None else self.patience
        with self._lock:
            while True:
                try:
                    self._connection.request(method, self._path + path, body, headers)
                    response = self._connection.getresponse()
                    status, data, said = response.status, response.read(), response.headers
                    problem = ""
                except (OSError, http.client.HTTPException) as error:  # no word of whether the post was counted
                    self._connection.close()
                    status, data, said = 0, b"", None
                    problem = f"{self.url} does not answer ({type(error).__name__}: {error})."
                    if not self._reached and isinstance(error, (ConnectionRefusedError, socket.gaierror)):
                        problem += " Start the service with `reprior serve`, or correct the address."
                        patience = AT_FIRST if self.patience is None else self.patience
                self._reached = self._reached or bool(status)
                if 200 <= status < 300:
                    found: dict[str, Any] = self._read(data, said["Content-Type"] if said else "")
                    return found
                sentence = problem or self._sentence(data, status)
                if status and status not in AGAIN:
                    raise ServiceError(sentence, status)
                wait = pause * random.uniform(0.5, 1.0)  # clients of a server that comes back do not all come at once
                if said is not None and (said.get("Retry-After") or "").isdigit():
                    wait = min(float(said["Retry-After"]), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
                if time.monotonic() + wait > started + patience:
                    raise ServiceError(f"Given up after {patience:g} seconds. {sentence}", status)
                self._sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _read(self, data: bytes, kind: str) -> Any:
        return self._msgpack.unpackb(data) if self._msgpack is not None and "msgpack" in kind else json.loads(data)

    def _sentence(self, data: bytes, status: int) -> str:
        try:
            return str(json.loads(data)["error"])
        except (ValueError, KeyError, TypeError):
            return f"The service answered with status {status}."


class Batches:
    """Gathers rows and sends them from a thread, `rows` at a time or after `seconds`, whichever comes first.

    Parameters
    ----------
    rows : how many make a batch.
    seconds : how long a row waits at most.
    waiting : rows that may wait; when so many do, `add` waits too ("block") or leaves rows out ("drop").
    on_answer : called in the thread with every `Answer`.

    Nothing is corrected: use `Client.send` for that. Use it as a context, or call `close`.
    """

    def __init__(
        self, client: Client, stream: str, *, rows: int = 256, seconds: float = 1.0, waiting: int = 100_000,
        full: str = "block", on_answer: Callable[[Answer], None] | None = None,
    ) -> None:  # fmt: skip
        self.client, self.stream = client, stream
        self.rows, self.waiting = check_int(rows, "Batches", "rows"), check_int(waiting, "Batches", "waiting")
        self.seconds = check_number(seconds, "Batches", "seconds", low=0, open_low=True)
        self.full = check_choice(full, "Batches", "full", ("block", "drop"))
        self.dropped = self.sent = 0
        self.error: Exception | None = None
        self._on_answer = on_answer
        self._parts: list[Matrix] = []
        self._count, self._since, self._closing, self._busy = 0, 0.0, False, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="reprior-batches", daemon=True)
        self._thread.start()

    def add(self, proba: Any) -> None:
        """Take in rows (n, K), or one row (K,); they are sent later."""
        rows = np.array(self.client._ordered(self.stream, proba, "Batches.add"), copy=True)
        rows = check_matrix(rows[None] if rows.ndim == 1 else rows, "Batches.add", "proba")
        with self._changed:
            self._usable()
            if self.full == "drop" and self._count + len(rows) > self.waiting:
                self.dropped += len(rows)
                return
            while self._count and self._count + len(rows) > self.waiting and self.error is None:
                self._changed.wait(0.1)
            self._usable()
            if not self._count:
                self._since = time.monotonic()
            self._parts.append(rows)
            self._count += len(rows)
            self._changed.notify_all()

    def flush(self) -> None:
        """Send what is there and wait until the service has it."""
        with self._changed:
            self._since = -np.inf
            self._changed.notify_all()
            while (self._count or self._busy) and self.error is None:
                self._changed.wait(0.1)
            if self.error is not None:
                raise self.error

    def close(self) -> None:
        """Send what is there, and end the thread."""
        try:
            if self.error is None:
                self.flush()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _usable(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closing:
            fail("Batches.add", "batches", "be open", "closed")

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing:
                    left = self._since + self.seconds - time.monotonic()
                    if self._count and (self._count >= self.rows or left <= 0):
                        break
                    self._changed.wait(left if self._count else None)
                if not self._count:
                    return
                gathered = np.concatenate(self._parts)
                block, rest = gathered[: self.rows], gathered[self.rows :]
                self._parts, self._count, self._busy = [rest] if len(rest) else [], len(rest), True
            try:
                told = self.client.send(self.stream, block, correct=False)
                if self._on_answer is not None:
                    self._on_answer(told)
            except Exception as error:  # whoever adds or flushes next is told
                self.error = error
            with self._changed:
                self._busy = False
                self.sent += len(block)
                self._changed.notify_all()
            if self.error is not None:
                return


def plain(value: Any) -> Any:
    """Return arrays as lists, so that JSON can hold them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
