"""The client that waits for each answer."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reprior.client.calls import MAX_BODY, Answer, Call, Calls, Reply, Request, at

if TYPE_CHECKING:
    from reprior.client.batches import Batches


class Connection:
    """One connection to the service, opened when it is needed."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url, self._http = url, kind(parts.hostname or "", parts.port, timeout=timeout)

    def exchange(self, request: Request, headers: dict[str, str]) -> Reply:
        """Return the reply to one attempt of a request."""
        try:
            try:
                self._http.request(request.method, request.path, request.body, headers)
            except (BrokenPipeError, ConnectionResetError):
                if self._http.sock is None:
                    raise
                # the service may have refused the body before it had read all of it: look for its answer
            response = self._http.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, response.read(), headers)
        except (OSError, http.client.HTTPException) as error:  # no word of whether the post was counted
            self._http.close()
            problem = f"{self._url} does not answer ({type(error).__name__}: {error})."
            unreachable = isinstance(error, (ConnectionRefusedError, socket.gaierror))
            return Reply(0, problem=problem, unreachable=unreachable)

    def close(self) -> None:
        """Close the connection; the next exchange opens it again."""
        self._http.close()


class Client(Calls):
    """Speak to one service over one connection; threads may share it, and their posts go one after the other.

    Rows with names (a DataFrame, Series or dict) are matched to the stream's classes by name. The client asks the
    service for those once. Rows that are too many for one post are sent in several.

    Parameters
    ----------
    url : the address, such as ``http://127.0.0.1:8733``.
    token : the bearer token, if the service wants one.
    name : the name by which the service knows this client; a new random one by default. Posts carry numbers under it,
        so two clients must not share a name, and one that continues under its old name must know its last numbers
        (`seqs`).
    timeout : seconds that one attempt may take.
    patience : seconds after which a post is given up. By default 120, and 5 if nothing has ever answered at the
        address.
    max_body : bytes of one post. Keep it below the service's ``--max-body``.

    >>> client = Client("http://127.0.0.1:8733", token="secret-token")
    >>> client.url
    'http://127.0.0.1:8733'
    """

    def __init__(
        self, url: str, *, token: str | None = None, name: str | None = None, timeout: float = 30.0,
        patience: float | None = None, max_body: int = MAX_BODY, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        super().__init__(url, token=token, name=name, timeout=timeout, patience=patience, max_body=max_body)
        self._connection, self._sleep = Connection(self.url, self.timeout), sleep
        self._lock = threading.RLock()

    def _run(self, call: Call) -> Any:
        """Return what a call returns, after its requests and pauses."""
        reply: Reply | None = None
        with self._lock:
            while True:
                try:
                    step = call.send(reply)
                except StopIteration as end:
                    return end.value
                if isinstance(step, Request):
                    reply = self._connection.exchange(step, self.headers(step))
                else:
                    self._sleep(step)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(
        self, stream: str, source: Any = None, *, classes: Any = None, method: str | None = None, alarm: Any = None,
        stale_after: float | None = None, heldout: tuple[Any, Any] | None = None, saved: Any = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Make a stream, and return its description; an existing stream with the same definition stays.

        Parameters
        ----------
        source : class counts or shares (K,); or a Series or dict from class to count, which names the classes in its
            own order if there are no `classes` and no `heldout`; or what `saved` takes.
        classes : the names of the classes (K,), in the order of the columns.
        method : the online method; "online-ebls" by default. `options` are the method's.
        alarm : False, True or a dict of options of `reprior.Alarm`.
        stale_after : seconds without samples after which the stream raises an alarm; 0 for never. By default the
            service's ``--stale-after``.
        heldout : held-out probabilities (n, K) and their labels (n,), for calibration, alarm and diagnosis. A
            DataFrame's columns name the classes.
        saved : a Pipeline or Stream, or the bytes of one, instead of source, classes and heldout.
        """
        more = {"method": method, "alarm": alarm, "stale_after": stale_after, "options": options or None}
        call = self._put(stream, source, classes, heldout, saved, more)
        made: dict[str, Any] = self._run(call)
        return made

    def get(self, stream: str) -> dict[str, Any]:
        """Return the state of a stream: prior, interval, alarm, diagnosis."""
        found: dict[str, Any] = self._run(self._asked(Request("GET", at(stream))))
        return found

    def renew(self, stream: str, saved: Any, *, by: str = "") -> int:
        """Begin a new model version of a stream and return its number.

        The history stays. The estimate starts again from the new pipeline, and an open alarm about a shift ends.

        Parameters
        ----------
        saved : a Pipeline of the new model with the same classes, or the bytes of one.
        by : your name, for the audit.
        """
        number: int = self._run(self._renew(stream, saved, by))
        return number

    def state(self, stream: str) -> bytes:
        """Return a stream with everything it has learned, as bytes for `put` and `reprior.Stream.from_bytes`."""
        data: bytes = self._run(self._asked(Request("GET", at(stream, "state"))))
        return data

    def delete(self, stream: str) -> None:
        """Remove a stream with everything it has learned."""
        self._run(self._delete(stream))

    def alarms(self, stream: str) -> list[dict[str, Any]]:
        """Return the alarms of a stream, the newest first; an alarm without acknowledgement is open."""
        found: list[dict[str, Any]] = self._run(self._alarms(stream))
        return found

    def acknowledge(self, stream: str, alarm: Any, *, by: str, note: str = "", next: str = "restart") -> dict[str, Any]:
        """Acknowledge an open alarm, one of `alarms` or its number; return the stored acknowledgement.

        Parameters
        ----------
        by : your name.
        note : what you found.
        next : "restart" the test against the same reference, or "accept" the samples since the alarm as the new one.
        """
        done: dict[str, Any] = self._run(self._acknowledge(stream, alarm, by, note, next))
        return done

    def silence(self, stream: str, seconds: float, *, by: str, note: str = "") -> dict[str, Any] | None:
        """Hold back messages about a stream for some seconds; 0 ends a silence. Return the silence that holds now."""
        held: dict[str, Any] | None = self._run(self._silence(stream, seconds, by, note))
        return held

    def send(self, stream: str, proba: Any, *, correct: bool = True) -> Answer:
        """Let a stream learn rows (n, K), and return them corrected; each post is repeated until it counts once."""
        told: Answer = self._run(self._send(stream, proba, correct))
        return told

    def label(self, stream: str, proba: Any, y: Any) -> Answer:
        """Give the labels (n,), column numbers or names, of rows (n, K) that were sent before."""
        told: Answer = self._run(self._label(stream, proba, y))
        return told

    def batches(self, stream: str, **options: Any) -> Batches:
        """Return a `Batches`, which collects rows of this stream and sends them from a thread."""
        from reprior.client.batches import Batches

        return Batches(self, stream, **options)
