"""What travels between a client and the service: values, bodies of requests, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np

from reprior._check import check_matrix, fail, in_order, names_of, own_names
from reprior._labels import same_rows
from reprior._types import Matrix, Vector
from reprior.rows.blocks import by_name

JSON, BYTES, MSGPACK = "application/json", "application/octet-stream", "application/msgpack"
MAX_BODY = 8 << 20  # bytes of one post; the service takes 32 MiB unless it is started with another --max-body
JSON_BYTES = 25  # of one number as JSON, with its comma


class ServiceError(Exception):
    """The service refused a request, or could not be reached in time.

    Attributes
    ----------
    status : int
        HTTP status; 0 without an answer.
    uncounted : bool
        Whether it is certain that no attempt of the request was counted.
    retry_after : float or None
        Seconds after which the service asks to be tried again.
    """

    def __init__(self, sentence: str, status: int = 0, *, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after, self.uncounted = status, retry_after, False


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the service to samples.

    Attributes
    ----------
    proba : (n, K)
        The samples corrected by the new prior; a DataFrame for a DataFrame. None if you asked for no correction.
    prior : (K,)
        Estimated class prior.
    n : int
        Number of samples that the stream has learned.
    repeated : bool
        Whether an earlier attempt of this post had already been counted.
    counted_at : int, optional
        Number of samples of the stream when it was.
    gap : (int, int), optional
        First and last number of posts that never arrived before this one.
    """

    proba: Matrix | None = field(repr=False)
    prior: Vector = field(repr=False)
    n: int
    repeated: bool = False
    counted_at: int | None = None
    gap: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Classes:
    """What the client must know of a stream to check rows: the names in order, if any, and what a row holds."""

    count: int
    names: tuple[str, ...] | None
    logits: bool


def bytes_of(saved: Any) -> bytes:
    """Return a pipeline or stream as bytes."""
    return saved.to_bytes() if hasattr(saved, "to_bytes") else bytes(saved)


def at(stream: str, what: str = "") -> str:
    """Return the path of a stream, or of something below it."""
    if not stream:
        fail("Client", "name", "be the name of a stream", "an empty text")
    return f"/streams/{quote(stream, safe='')}" + (what and f"/{what}")


def definition_fields(source: Any, classes: Any, heldout: tuple[Any, Any] | None) -> dict[str, Any]:
    """Return the fields of a PUT that define a stream."""
    caller = "Client.put"
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


def answer_of(fields: dict[str, Any], rows: Matrix | None) -> Answer:
    """Return the answer to `rows` that the fields of a body hold; corrected rows have their type and shape."""
    corrected, gap = fields.get("proba"), fields.get("gap")
    if corrected is None or rows is None:
        corrected = None
    elif isinstance(corrected, bytes):
        corrected = np.frombuffer(corrected, "<f4" if rows.dtype == np.float32 else "<f8").reshape(rows.shape)
    else:
        corrected = np.array(corrected, rows.dtype).reshape(rows.shape)
    return Answer(corrected, np.array(fields["prior"]), fields["n"], fields.get("repeated", False),
                  fields.get("counted_at"), gap and (gap["first"], gap["last"]))  # fmt: skip


def joined(answers: list[Answer]) -> Answer:
    """Return the answers to the parts of one call as one answer."""
    if len(answers) == 1:
        return answers[0]
    parts = [a.proba for a in answers if a.proba is not None]
    gaps = [a.gap for a in answers if a.gap is not None]
    return replace(answers[-1], proba=np.concatenate(parts) if parts else None, gap=gaps[0] if gaps else None,
                   repeated=any(a.repeated for a in answers))  # fmt: skip


def raw(value: Any) -> Any:
    """Return an object for msgpack: the matrix `proba` as raw bytes beside its `dtype`."""
    if not isinstance(value, dict):
        return plain(value)
    packed = {str(key): raw(item) for key, item in value.items() if key != "proba"}
    rows = value.get("proba")
    if rows is not None:
        kind = "f4" if rows.dtype == np.float32 else "f8"
        packed |= {"proba": np.ascontiguousarray(rows, f"<{kind}").tobytes(), "dtype": kind}
    return packed


def plain(value: Any) -> Any:
    """Return arrays as lists, so that JSON can hold them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
