"""The client that waits for each answer."""

from __future__ import annotations

import http.client
import json
import math
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from reprior._check import check_int, check_matrix, check_number, fail, is_named, like_input
from reprior._labels import same_rows
from reprior._types import Matrix
from reprior.client import bodies
from reprior.client.bodies import BYTES, JSON, MSGPACK, Answer, Classes, ServiceError, at, plain
from reprior.rows.blocks import by_name

if TYPE_CHECKING:
    from reprior.client.batches import Batches

AGAIN = (408, 425, 429, 500, 502, 503, 504)  # statuses after which the service may take the same request later
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between two attempts
PATIENCE, AT_FIRST = 120.0, 5.0  # seconds; the second if nothing has ever answered: the address may be wrong


class Client:
    """Connect to one service. Threads may share a client; their posts are sent one after the other.

    Samples with names (a DataFrame, Series or dict) are matched to the stream's classes by name. Samples that are too
    many for one post are sent in several.

    Parameters
    ----------
    url : str
        Address, such as ``http://127.0.0.1:8733``.
    token : str, optional
        Bearer token, if the service requires one.
    name : str, optional
        Name of this client at the service; by default a new random one. Posts are numbered per name, so two clients
        must not share a name. A client that continues under its old name must know its last numbers (`seqs`).
    timeout : float
        Seconds that one attempt may take.
    patience : float, optional
        Seconds after which a post is given up. By default 120, and 5 if nothing has ever answered at the address.
    max_body : int
        Maximum size of a post in bytes. Keep it below the service's ``--max-body``.
    sleep : callable
        Function that waits some seconds between two attempts.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8733", token="secret-token")
    >>> client.url
    'http://127.0.0.1:8733'
    """

    def __init__(
        self, url: str, *, token: str | None = None, name: str | None = None, timeout: float = 30.0,
        patience: float | None = None, max_body: int = bodies.MAX_BODY, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail("Client", "url", "be an http or https address", repr(url))
        self.url, self.name = url.rstrip("/"), name or f"python-{uuid.uuid4().hex[:12]}"
        self.timeout = check_number(timeout, "Client", "timeout", low=0, open_low=True)
        self.patience = None if patience is None else check_number(patience, "Client", "patience", low=0)
        self.max_body = check_int(max_body, "Client", "max_body", low=1)
        self.seqs: dict[str, int] = {}  # the last number used for each stream
        self.problem: str | None = None  # why the last attempt failed; None if it succeeded
        self._classes: dict[str, Classes] = {}  # of the streams asked for
        self._reached = False  # whether the service has ever answered
        self._path, self.sleep = parts.path.rstrip("/"), sleep
        self._repeats: Callable[[int], bool] = AGAIN.__contains__  # whether a request with this answer is sent again
        self._login = {} if token is None else {"Authorization": f"Bearer {token}"}
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=self.timeout)
        self._lock = threading.RLock()
        try:
            import msgpack
        except ImportError:
            msgpack = None
        self._msgpack = msgpack

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, name={self.name!r})"

    def patient_twin(self, sleep: Callable[[float], None], final: Sequence[int]) -> Client:
        """Return a client with a connection and a name of its own that repeats posts without end.

        It gives up on answers with one of the statuses `final`.
        """
        twin = Client(self.url, name=f"{self.name}-{uuid.uuid4().hex[:8]}", timeout=self.timeout,
                      max_body=self.max_body, sleep=sleep)  # fmt: skip
        twin.patience, twin._repeats = math.inf, lambda status: status not in final
        twin._msgpack, twin._login = self._msgpack, self._login
        return twin

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
        self, /, stream: str, source: Any = None, *, classes: Any = None, method: str | None = None, alarm: Any = None,
        stale_after: float | None = None, heldout: tuple[Any, Any] | None = None, saved: Any = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Create a stream and return its description. If it exists with the same definition, nothing changes.

        Parameters
        ----------
        stream : str
            Name of the stream.
        source : (K,), Series or dict
            Class counts or shares. A Series or dict names the classes, in its own order if there are neither `classes`
            nor `heldout`. Or a Pipeline or Stream, as in `saved`.
        classes : sequence of K names, optional
            Class names in the order of the columns.
        method : str, optional
            Online method; "online-ebls" by default.
        alarm : bool or dict
            Whether to test for shifts; a dict has options of `reprior.Alarm`.
        stale_after : float, optional
            Seconds without samples after which the stream raises an alarm; 0 for never. By default the service's
            ``--stale-after``.
        heldout : ((n, K), (n,)), optional
            Held-out probabilities and labels, for calibration, alarm and diagnosis. Columns of a DataFrame name the
            classes.
        saved : Pipeline, Stream or bytes, optional
            Instead of `source`, `classes` and `heldout`.
        **options
            Options of the method.
        """
        more = {"method": method, "alarm": alarm, "stale_after": stale_after, "options": options or None}
        if isinstance(source, (bytes, bytearray)) or hasattr(source, "to_bytes"):
            source, saved = None, source
        if saved is not None:
            if source is not None or classes is not None or heldout is not None:
                fail("Client.put", "saved", "be given without source, classes and heldout, because it has them", "both")
            query = urlencode({key: value if key in ("method", "stale_after") else json.dumps(value)
                               for key, value in more.items() if value is not None})  # fmt: skip
            return self._described("PUT", stream, at(stream) + (query and f"?{query}"), bodies.bytes_of(saved), BYTES)
        fields = bodies.definition_fields(source, classes, heldout)
        try:
            body, kind = self._body({key: value for key, value in (fields | more).items() if value is not None})
        except TypeError as error:
            fail("Client.put", "options", "be what JSON can hold", str(error),
                 remedy="A Pipeline or Stream is given as `source` or `saved`")  # fmt: skip
        return self._described("PUT", stream, at(stream), body, kind)

    def get(self, stream: str) -> dict[str, Any]:
        """Return the state of a stream: prior, interval, alarm, diagnosis."""
        return dict(self._ask("GET", at(stream)))

    def renew(self, stream: str, saved: Any, *, by: str = "") -> int:
        """Start a new model version of a stream and return its number.

        The history stays. The estimate starts again from the new pipeline, and an open alarm about a shift ends.

        Parameters
        ----------
        saved : Pipeline or bytes
            Pipeline of the new model, with the same classes.
        by : str
            Your name, for the audit log.
        """
        path = at(stream, "versions") + f"?{urlencode({'by': by})}"
        return int(self._described("POST", stream, path, bodies.bytes_of(saved), BYTES)["version"])

    def state(self, stream: str) -> bytes:
        """Return a stream with everything it has learned, as bytes for `put` and `reprior.Stream.from_bytes`."""
        return bytes(self._ask("GET", at(stream, "state")))

    def delete(self, stream: str) -> None:
        """Remove a stream with everything it has learned."""
        self._ask("DELETE", at(stream), json.dumps({"confirm": stream}).encode())
        self.seqs.pop(stream, None)
        self._classes.pop(stream, None)

    def _described(
        self, method: str, stream: str, path: str, body: bytes | None = None, kind: str = JSON
    ) -> dict[str, Any]:
        """Return the service's description of a stream, and note its classes."""
        about = dict(self._ask(method, path, body, kind))
        names = tuple(about["classes"])
        self._classes[stream] = Classes(len(names), names if about["named"] else None, about["logits"])
        return about

    def classes_of(self, stream: str, *, again: bool = False) -> Classes:
        """Return the classes of a stream; the service is asked once, or `again`."""
        if again or stream not in self._classes:
            self._described("GET", stream, at(stream) + "?diagnosis=0")
        return self._classes[stream]

    # alarms

    def alarms(self, stream: str) -> list[dict[str, Any]]:
        """Return the alarms of a stream, the newest first; an alarm without acknowledgement is open."""
        return list(self._ask("GET", at(stream, "alarms"))["alarms"])

    def acknowledge(self, stream: str, alarm: Any, *, by: str, note: str = "", next: str = "restart") -> dict[str, Any]:
        """Acknowledge an open alarm (an entry of `alarms`, or its number) and return the stored acknowledgement.

        Parameters
        ----------
        by : str
            Your name.
        note : str
            What you found.
        next : {"restart", "accept"}
            "restart" tests against the same reference. "accept" takes the samples since the alarm as the new reference.
        """
        number = alarm["id"] if isinstance(alarm, Mapping) else check_int(alarm, "Client.acknowledge", "alarm")
        body = json.dumps({"by": by, "note": note, "next": next}).encode()
        return dict(self._ask("POST", at(stream, f"alarms/{number}/acknowledge"), body))

    def silence(self, stream: str, seconds: float, *, by: str, note: str = "") -> dict[str, Any] | None:
        """Hold back messages about a stream for some seconds; 0 ends a silence. Return the silence that holds now."""
        body = json.dumps({"seconds": seconds, "by": by, "note": note}).encode()
        silence: dict[str, Any] | None = self._ask("POST", at(stream, "silence"), body)["silence"]
        return silence

    # rows

    def send(self, stream: str, proba: Any, *, ids: Sequence[str] | None = None, correct: bool = True) -> Answer:
        """Let a stream learn probabilities (n, K) and return them corrected. Each post counts once.

        Under the prediction ids (n,), if there are some, labels can follow later.
        """
        rows = self._rows(stream, proba, "Client.send")
        each = {} if ids is None else {"ids": plain(ids)}
        answer = self._post_parts(stream, "samples", rows, each, {} if correct else {"correct": False})
        if answer.proba is None:
            return answer
        classes = self._classes.get(stream)
        return replace(answer, proba=like_input(answer.proba, proba, None if classes is None else classes.names))

    def label(self, stream: str, proba: Any = None, y: Any = None, *, ids: Sequence[str] | None = None) -> Answer:
        """Send the labels (n,), names or column indices, of samples (n, K) or prediction ids (n,) sent before."""
        if (proba is None) == (ids is None):
            fail("Client.label", "proba", "be given, or `ids`", "neither" if ids is None else "both")
        if y is None:
            fail("Client.label", "y", "be the labels", "None")
        same_rows(ids if proba is None else proba, y, "Client.label")
        if proba is None:
            return self._post_parts(stream, "labels", None, {"ids": plain(ids), "y": plain(y)}, {})
        return self._post_parts(stream, "labels", self._rows(stream, proba, "Client.label"), {"y": plain(y)}, {})

    def batches(self, stream: str, **options: Any) -> Batches:
        """Return a `Batches`, which collects samples of this stream and sends them from a thread."""
        from reprior.client.batches import Batches

        return Batches(self, stream, **options)

    def rows_at_once(self, rows: Matrix) -> int:
        """Return how many rows fit into one post."""
        size = bodies.JSON_BYTES if self._msgpack is None else 4 if rows.dtype == np.float32 else 8
        return max(1, self.max_body // (size * int(rows.shape[1])))

    def _rows(self, stream: str, proba: Any, caller: str) -> Matrix:
        """Return rows (n, K), in the order of the stream's classes if they have names."""
        if is_named(proba):
            proba = by_name(proba, self.classes_of(stream).names, caller)
        return check_matrix(proba, caller, "proba")

    def _post_parts(
        self, stream: str, what: str, rows: Matrix | None, each: dict[str, Any], more: dict[str, Any]
    ) -> Answer:
        """Return the answer to rows, posted in as many parts as the largest body asks for.

        `each` holds lists with one entry per row; without `rows` they are all there is.
        """
        n = len(each["ids"] if rows is None else rows)
        step, answers = n if rows is None else self.rows_at_once(rows), []
        parts = [slice(first, min(first + step, n)) for first in range(0, n, step or 1)]
        # lists of another length go as one post: the service answers what is wrong with them
        parts = parts if all(len(values) == n for values in each.values()) else [slice(None)]
        with self._lock:
            while parts:
                part = parts.pop(0)
                fields = more | {key: values[part] for key, values in each.items()}
                try:
                    answers.append(self._post(stream, what, None if rows is None else rows[part], fields))
                except ServiceError as error:
                    if error.status != 413 or part.start is None or part.stop - part.start == 1:
                        raise
                    middle = (part.start + part.stop) // 2  # the service takes less than we thought
                    parts[:0] = [slice(part.start, middle), slice(middle, part.stop)]
        return bodies.joined(answers)

    def _post(self, stream: str, what: str, rows: Matrix | None, more: dict[str, Any]) -> Answer:
        """Return the answer to one numbered post."""
        before = self.seqs.get(stream, 0)
        self.seqs[stream] = before + 1
        proba = {} if rows is None else {"proba": rows}
        body, kind = self._body({"client": self.name, "seq": before + 1, **more, **proba})
        try:
            return bodies.answer_of(self._ask("POST", at(stream, what), body, kind), rows)
        except ServiceError as error:
            if error.uncounted:  # a number that is left out would count as a gap
                self.seqs[stream] = before
            raise

    # one request

    def _body(self, fields: dict[str, Any]) -> tuple[bytes, str]:
        """Return an object as a body with its content type; a matrix becomes raw bytes, or lists without msgpack."""
        if self._msgpack is None:
            return json.dumps(plain(fields)).encode(), JSON
        return self._msgpack.packb(bodies.raw(fields)), MSGPACK

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = JSON) -> Any:
        """Return the answer to a request that may be repeated without harm, after as many attempts as it takes."""
        headers = {"Accept": MSGPACK if kind == MSGPACK else JSON, **self._login}
        if body is not None:
            headers["Content-Type"] = kind
        started, pause, first = time.monotonic(), FIRST_PAUSE, True
        with self._lock:
            while True:
                try:
                    answer = self._attempt(method, self._path + path, body, headers)
                    self.problem = None
                    return answer
                except ServiceError as error:
                    refused, problem, patience = error, str(error), PATIENCE
                self.problem = problem
                if refused.status and not self._repeats(refused.status):
                    refused.uncounted = first
                    raise refused
                if not self._reached and isinstance(refused.__cause__, (ConnectionRefusedError, socket.gaierror)):
                    problem += " Start the service with `reprior serve`, or correct the address."
                    patience = AT_FIRST
                patience = patience if self.patience is None else self.patience
                wait = pause if refused.retry_after is None else min(refused.retry_after, LONGEST_PAUSE)
                wait *= random.uniform(0.5, 1.0)  # clients of a server that comes back do not all come at once
                if time.monotonic() + wait > started + patience:
                    raise ServiceError(f"Given up after {patience:g} seconds. {problem}", refused.status)
                self.sleep(wait)
                pause, first = min(2 * pause, LONGEST_PAUSE), False

    def _attempt(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        """Return the answer to one attempt of a request; an error has no status if nothing was answered."""
        try:
            try:
                self._connection.request(method, path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                if self._connection.sock is None:
                    raise
                # the service may have refused the body before it had read all of it: look for its answer
            response = self._connection.getresponse()
            content, kind = response.read(), response.getheader("Content-Type", "")
        except (OSError, http.client.HTTPException) as error:  # no word of whether the post was counted
            self._connection.close()
            raise ServiceError(f"{self.url} does not answer ({type(error).__name__}: {error}).") from error
        self._reached = True
        if not 200 <= response.status < 300:
            try:
                sentence = str(json.loads(content)["error"])
            except (ValueError, KeyError, TypeError):
                sentence = f"The service answered with status {response.status}."
            asked = response.getheader("Retry-After", "")
            raise ServiceError(sentence, response.status, retry_after=float(asked) if asked.isdigit() else None)
        if self._msgpack is not None and "msgpack" in kind:
            return self._msgpack.unpackb(content)
        return content if kind == BYTES else json.loads(content)
