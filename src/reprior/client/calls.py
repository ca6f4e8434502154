"""What both clients say to the service, without any input or output.

Each call is a generator. It yields a `Request`, and gets a `Reply`, or it yields a number of seconds to pause. `Client`
runs these generators with a socket and `time.sleep`, `AsyncClient` runs the same ones under asyncio.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from reprior._check import (
    check_int,
    check_matrix,
    check_number,
    fail,
    in_order,
    is_named,
    like_input,
    names_of,
    own_names,
)  # fmt: skip
from reprior._labels import same_rows
from reprior._types import Matrix, Vector
from reprior.rows.blocks import by_name

AGAIN = (408, 425, 429, 500, 502, 503, 504)  # statuses after which the service may take the same request later
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between two attempts
PATIENCE, AT_FIRST = 120.0, 5.0  # seconds; the second if nothing has ever answered: the address may be wrong
BYTES = "application/octet-stream"
MAX_BODY = 8 << 20  # bytes of one post; the service takes 32 MiB unless it is started with another --max-body
JSON_BYTES = 25  # of one number as JSON, with its comma


class ServiceError(Exception):
    """The service refused a request, or could not be reached in time.

    Attributes
    ----------
    status : the HTTP status; 0 if nothing was answered.
    uncounted : whether it is certain that no attempt of the request was counted.
    """

    def __init__(self, sentence: str, status: int = 0, *, uncounted: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.uncounted = status, uncounted


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service answers to rows.

    Attributes
    ----------
    proba : the rows (n, K) corrected by the new prior; for a DataFrame a DataFrame with the same columns.
    prior : the estimated prior (K,).
    n : how many samples the stream has learned.
    repeated : whether an earlier attempt of this post had already been counted.
    counted_at : the stream's number of samples when it was, if so.
    gap : the first and last number of posts that never arrived before this one.
    """

    proba: Matrix | None = field(repr=False)
    prior: Vector = field(repr=False)
    n: int
    repeated: bool = False
    counted_at: int | None = None
    gap: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `kind` is the content type of the body."""

    method: str
    path: str
    body: bytes | None = None
    kind: str = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """What one attempt brought: status 0 and a problem if nothing was answered. Header names are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    unreachable: bool = False  # nothing listens at the address, or it has no such name


@dataclass(frozen=True, slots=True)
class Classes:
    """What the client must know of a stream to check rows: the names in order, if any, and what a row holds."""

    count: int
    names: tuple[str, ...] | None
    logits: bool


Call = Generator[Request | float, Any, Any]


class Calls:
    """The calls of a client as generators, and the state they share."""

    def __init__(
        self, url: str, *, token: str | None = None, name: str | None = None, timeout: float = 30.0,
        patience: float | None = None, max_body: int = MAX_BODY,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(type(self).__name__, "url", "be an http or https address", repr(url))
        self.url, self.name = url.rstrip("/"), name or f"python-{uuid.uuid4().hex[:12]}"
        self.timeout = check_number(timeout, type(self).__name__, "timeout", low=0, open_low=True)
        self.patience = None if patience is None else check_number(patience, type(self).__name__, "patience", low=0)
        self.max_body = check_int(max_body, type(self).__name__, "max_body", low=1)
        self.seqs: dict[str, int] = {}  # the last number used for each stream
        self.problem: str | None = None  # why the last attempt failed; None if it succeeded
        self._classes: dict[str, Classes] = {}  # of the streams asked for
        self._reached = False  # whether the service has ever answered
        self._path, self._token = parts.path.rstrip("/"), token
        try:
            import msgpack
        except ImportError:
            msgpack = None
        self._msgpack = msgpack

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, name={self.name!r})"

    # one request

    def headers(self, request: Request) -> dict[str, str]:
        """Return the headers of a request."""
        packed = "msgpack" in request.kind
        made = {"Accept": "application/msgpack" if packed else "application/json"}
        if request.body is not None:
            made["Content-Type"] = request.kind
        if self._token is not None:
            made["Authorization"] = f"Bearer {self._token}"
        return made

    def _asked(self, request: Request) -> Call:
        """Return the answer to a request that may be repeated without harm, after as many attempts as it takes."""
        started, pause, attempts = time.monotonic(), FIRST_PAUSE, 0
        patience = PATIENCE if self.patience is None else self.patience
        while True:
            attempts += 1
            reply: Reply = yield replace(request, path=self._path + request.path)
            self._reached = self._reached or bool(reply.status)
            if 200 <= reply.status < 300:
                self.problem = None
                return self._read(reply)
            problem = self.problem = reply.problem or sentence_of(reply)
            if not self._reached and reply.unreachable:
                problem += " Start the service with `reprior serve`, or correct the address."
                patience = AT_FIRST if self.patience is None else self.patience
            if reply.status and not self._repeats(reply.status):
                raise ServiceError(problem, reply.status, uncounted=attempts == 1)
            wait = pause
            if (asked := reply.headers.get("retry-after", "")).isdigit():
                wait = min(float(asked), LONGEST_PAUSE)
            wait *= random.uniform(0.5, 1.0)  # clients of a server that comes back do not all come at once
            if time.monotonic() + wait > started + patience:
                raise ServiceError(f"Given up after {patience:g} seconds. {problem}", reply.status)
            yield wait
            pause = min(2 * pause, LONGEST_PAUSE)

    def _repeats(self, status: int) -> bool:
        """Return whether a request that was answered with this status is sent again."""
        return status in AGAIN

    def _read(self, reply: Reply) -> Any:
        if self._msgpack is not None and "msgpack" in reply.headers.get("content-type", ""):
            return self._msgpack.unpackb(reply.body)
        if reply.headers.get("content-type") == BYTES:
            return reply.body
        return json.loads(reply.body)

    def _body(self, fields: dict[str, Any]) -> tuple[bytes, str]:
        """Return an object as a body with its content type; a matrix becomes raw bytes, or lists without msgpack."""
        if self._msgpack is None:
            return json.dumps(plain(fields)).encode(), "application/json"
        return self._msgpack.packb(raw(fields)), "application/msgpack"

    # calls about streams

    def _put(
        self, stream: str, source: Any, classes: Any, heldout: tuple[Any, Any] | None, saved: Any, more: dict[str, Any]
    ) -> Call:
        """Make a stream; `more` are the method, its options, and when alarms are raised."""
        caller = f"{type(self).__name__}.put"
        if isinstance(source, (bytes, bytearray)) or hasattr(source, "to_bytes"):
            source, saved = None, source
        if saved is not None:
            if source is not None or classes is not None or heldout is not None:
                fail(caller, "saved", "be given without source, classes and heldout, because it has them", "both")
            query = urlencode({key: value if key in ("method", "stale_after") else json.dumps(value)
                               for key, value in more.items() if value is not None})  # fmt: skip
            request = Request("PUT", at(stream) + (query and f"?{query}"), bytes_of(saved), BYTES)
            return (yield from self._made(stream, request))
        fields = described(caller, source, classes, heldout)
        try:
            body, kind = self._body({key: value for key, value in (fields | more).items() if value is not None})
        except TypeError as error:
            fail(caller, "options", "be what JSON can hold", str(error),
                 remedy="A Pipeline or Stream is given as `source` or `saved`")  # fmt: skip
        return (yield from self._made(stream, Request("PUT", at(stream), body, kind)))

    def _made(self, stream: str, request: Request) -> Call:
        """Return what the service says of a stream, and note its classes."""
        told = yield from self._asked(request)
        names = tuple(told["classes"])
        self._classes[stream] = Classes(len(names), names if told["named"] else None, told["logits"])
        return told

    def _known(self, stream: str) -> Call:
        """Return the classes of a stream; the service is asked once."""
        if stream not in self._classes:
            yield from self._made(stream, Request("GET", at(stream) + "?diagnosis=0"))
        return self._classes[stream]

    def _renew(self, stream: str, saved: Any, by: str) -> Call:
        path = at(stream, "versions") + f"?{urlencode({'by': by})}"
        made = yield from self._made(stream, Request("POST", path, bytes_of(saved), BYTES))
        return made["version"]

    def _delete(self, stream: str) -> Call:
        yield from self._asked(Request("DELETE", at(stream), json.dumps({"confirm": stream}).encode()))
        self.seqs.pop(stream, None)
        self._classes.pop(stream, None)

    def _alarms(self, stream: str) -> Call:
        return (yield from self._asked(Request("GET", at(stream, "alarms"))))["alarms"]

    def _acknowledge(self, stream: str, alarm: Any, by: str, note: str, then: str) -> Call:
        caller = f"{type(self).__name__}.acknowledge"
        number = alarm["id"] if isinstance(alarm, Mapping) else check_int(alarm, caller, "alarm")
        body = json.dumps({"by": by, "note": note, "next": then}).encode()
        return (yield from self._asked(Request("POST", at(stream, f"alarms/{number}/acknowledge"), body)))

    def _silence(self, stream: str, seconds: float, by: str, note: str) -> Call:
        body = json.dumps({"seconds": seconds, "by": by, "note": note}).encode()
        return (yield from self._asked(Request("POST", at(stream, "silence"), body)))["silence"]

    # calls with rows

    def _send(self, stream: str, proba: Any, correct: bool) -> Call:
        rows = yield from self._rows(stream, proba, f"{type(self).__name__}.send")
        told: Answer = yield from self._posted(stream, "samples", rows, None, {} if correct else {"correct": False})
        if told.proba is None:
            return told
        known = self._classes.get(stream)
        return replace(told, proba=like_input(told.proba, proba, None if known is None else known.names))

    def _label(self, stream: str, proba: Any, y: Any) -> Call:
        caller = f"{type(self).__name__}.label"
        same_rows(proba, y, caller)
        rows = yield from self._rows(stream, proba, caller)
        return (yield from self._posted(stream, "labels", rows, plain(y), {}))

    def _rows(self, stream: str, proba: Any, caller: str) -> Call:
        """Return rows (n, K), in the order of the stream's classes if they have names."""
        if is_named(proba):
            known = yield from self._known(stream)
            proba = by_name(proba, known.names, caller)
        return check_matrix(proba, caller, "proba")

    def rows_at_once(self, rows: Matrix) -> int:
        """Return how many rows fit into one post."""
        size = JSON_BYTES if self._msgpack is None else 4 if rows.dtype == np.float32 else 8
        return max(1, self.max_body // (size * int(rows.shape[1])))

    def _posted(self, stream: str, what: str, rows: Matrix, y: Any, more: dict[str, Any]) -> Call:
        """Return the answer to rows, posted in as many parts as the largest body asks for."""
        step, answers = self.rows_at_once(rows), []
        parts = [slice(first, first + step) for first in range(0, len(rows), step)]
        # labels of another length go as one post: the service says what is wrong with them
        parts = parts if y is None or len(y) == len(rows) else [slice(None)]
        while parts:
            part = parts.pop(0)
            block = rows[part]
            fields = more if y is None else {**more, "y": y[part]}
            try:
                answers.append((yield from self._post(stream, what, block, fields)))
            except ServiceError as error:
                if error.status != 413 or len(block) == 1:
                    raise
                middle = part.start + len(block) // 2  # the service takes less than we thought
                parts[:0] = [slice(part.start, middle), slice(middle, part.stop)]
        return joined(answers)

    def _post(self, stream: str, what: str, rows: Matrix, more: dict[str, Any]) -> Call:
        """Return the answer to one numbered post."""
        before = self.seqs.get(stream, 0)
        self.seqs[stream] = before + 1
        body, kind = self._body({"client": self.name, "seq": before + 1, **more, "proba": rows})
        try:
            told = yield from self._asked(Request("POST", at(stream, what), body, kind))
        except ServiceError as error:
            if error.uncounted:  # a number that is left out would count as a gap
                self.seqs[stream] = before
            raise
        corrected, single = told.get("proba"), rows.dtype == np.float32
        if isinstance(corrected, bytes):
            corrected = np.frombuffer(corrected, "<f4" if single else "<f8").reshape(rows.shape)
        elif corrected is not None:
            corrected = np.array(corrected, rows.dtype).reshape(rows.shape)
        gap = told.get("gap")
        return Answer(corrected, np.array(told["prior"]), told["n"], told.get("repeated", False),
                      told.get("counted_at"), gap and (gap["first"], gap["last"]))  # fmt: skip


def bytes_of(saved: Any) -> bytes:
    """Return a pipeline or stream as bytes."""
    return saved.to_bytes() if hasattr(saved, "to_bytes") else bytes(saved)


def at(stream: str, what: str = "") -> str:
    """Return the path of a stream, or of something below it."""
    return f"/streams/{quote(stream, safe='')}" + (what and f"/{what}")


def described(caller: str, source: Any, classes: Any, heldout: tuple[Any, Any] | None) -> dict[str, Any]:
    """Return the fields of a PUT that say what a stream is made of."""
    own = None if heldout is None else own_names(heldout[0], classes)
    classes = own if classes is None else classes
    if classes is None and heldout is None:
        classes = names_of(source)[1]  # no rows yet whose columns might have another order
    names = None if classes is None else tuple(str(name) for name in classes)
    if source is not None:
        numbers, names = in_order(source, caller, "source", names)
        source = numbers.tolist()
    fields: dict[str, Any] = {"source": source, "classes": names}
    if heldout is not None:
        same_rows(*heldout, caller)
        rows = check_matrix(by_name(heldout[0], None if own is None else names, caller), caller, "heldout")
        fields["heldout"] = {"proba": rows, "y": plain(heldout[1])}
    return fields


def joined(answers: list[Answer]) -> Answer:
    """Return the answers to the parts of one call as one answer."""
    if len(answers) == 1:
        return answers[0]
    parts = [a.proba for a in answers if a.proba is not None]
    gaps = [a.gap for a in answers if a.gap is not None]
    return replace(answers[-1], proba=np.concatenate(parts) if parts else None, gap=gaps[0] if gaps else None,
                   repeated=any(a.repeated for a in answers))  # fmt: skip


def sentence_of(reply: Reply) -> str:
    """Return the sentence of an error."""
    try:
        return str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"The service answered with status {reply.status}."


def raw(value: Any) -> Any:
    """Return an object for msgpack: the matrix `proba` as raw bytes beside its `dtype`."""
    if not isinstance(value, dict):
        return plain(value)
    made = {str(key): raw(item) for key, item in value.items() if key != "proba"}
    rows = value.get("proba")
    if rows is not None:
        kind = "f4" if rows.dtype == np.float32 else "f8"
        made |= {"proba": np.ascontiguousarray(rows, f"<{kind}").tobytes(), "dtype": kind}
    return made


def plain(value: Any) -> Any:
    """Return arrays as lists, so that JSON can hold them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
