"""What `PUT /streams/{name}` may hold: a source with class names and a method, or a saved value as bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from reprior._check import check_choice, check_number, check_prior, fail, spelled
from reprior._types import Source
from reprior.online.stream import Stream
from reprior.pipelines.fit import fit_pipeline, pipeline
from reprior.pipelines.mismatch import label_mismatch
from reprior.pipelines.pipeline import Pipeline
from reprior.service.definition import Recipe, encoded
from reprior.service.settings import Limits
from reprior.service.wire import check_keys, parse_json
from reprior.state import kind_of

log = logging.getLogger("reprior.service")
KEYS = ("source", "classes", "method", "options", "alarm", "stale_after", "heldout")
ALARM_KEYS = ("alpha", "mode", "run_length", "exact")
LONGEST_NAME = 200
SOURCE_RULE = "be a list of counts or shares, or an object from class to count"


def check_name(name: Any) -> str:
    """Return the name of a stream; any printable text that an address can hold is one."""
    rule = f"be 1 to {LONGEST_NAME} printable characters without a slash"
    fits = isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() and "/" not in name
    if not fits or name in (".", ".."):
        fail("PUT", "name", rule, repr(name)[:80])
    return str(name)


def check_classes(value: Any, n_classes: int) -> list[str]:
    """Return the names of the classes, all different."""
    if not isinstance(value, list):
        fail("PUT", "classes", "be a list of texts", type(value).__name__)
    if len(value) != n_classes:
        fail("PUT", "classes", f"name all {n_classes} classes", len(value))
    spellings = set()
    for name in value:
        if not isinstance(name, str):
            fail("PUT", "classes", "be a list of texts", repr(name)[:80],
                 remedy='Put numbers in quotes, as in ["1", "2"]')  # fmt: skip
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            fail("PUT", "classes", f"be 1 to {LONGEST_NAME} printable characters each", repr(name)[:80])
        if spelled(name) in spellings:
            fail("PUT", "classes", "all be different", repr(name)[:80])
        spellings.add(spelled(name))
    return list(value)


def described(body: dict[str, Any], limits: Limits) -> Recipe:
    """Return the stream that an object describes."""
    check_keys(body, KEYS, "PUT")
    counts, classes = counts_and_classes(body, limits)
    if body.get("heldout") is not None:
        pipe = fitted(body["heldout"], counts, classes, limits)
    elif counts is not None:
        pipe = pipeline(prior=check_prior(counts, "PUT", "source"))
    else:
        fail("PUT", "source", SOURCE_RULE, "nothing")
    return recipe(pipe, classes, body)


def recipe(made: Pipeline | Stream, classes: Any, choices: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a stream, or of a pipeline's stream, with the choices that a client made."""
    source, method, options = made.source, choices.get("method", "online-ebls"), choices.get("options", {})
    if not isinstance(options, dict):
        fail("PUT", "options", "be an object", type(options).__name__)
    stream = made if isinstance(made, Stream) else made.stream(method, **options)
    names = None if classes is None else check_classes(classes, len(source.prior))
    stale = choices.get("stale_after")
    stale = None if stale is None else check_number(stale, "PUT", "stale_after", low=0)
    return encoded(stream, source, names, alarm_options(choices.get("alarm"), source), stale)


def counts_and_classes(body: dict[str, Any], limits: Limits) -> tuple[list[Any] | None, Any]:
    """Return the counts or shares of the source, in the order of the classes, and the names of the classes."""
    source, classes = body.get("source"), body.get("classes")
    if isinstance(source, dict):
        names = list(source)
        if classes is not None and sorted(check_classes(classes, len(names))) != sorted(names):
            fail("PUT", "classes", "name the same classes as `source`", "others")
        classes = names if classes is None else classes
        source = [source[name] for name in classes]
    if source is not None:
        if not isinstance(source, list) or any(isinstance(x, bool) for x in source):
            fail("PUT", "source", SOURCE_RULE, type(source).__name__)
        check_size(len(source), limits)
        check_prior(source, "PUT", "source")
    return source, classes


def fitted(heldout: Any, counts: list[Any] | None, classes: Any, limits: Limits) -> Pipeline:
    """Return the pipeline that held-out rows give: lists, or raw numbers of a `dtype`."""
    if not isinstance(heldout, dict):
        fail("PUT", "heldout", "be an object with `proba` and `y`", type(heldout).__name__)
    check_keys(heldout, ("proba", "dtype", "y"), "PUT")
    proba, y = heldout.get("proba"), heldout.get("y")
    if not isinstance(proba, (list, bytes)) or not isinstance(y, list):
        fail("PUT", "heldout", "have the lists `proba` and `y`", "others")
    if isinstance(proba, list):
        width = len(proba[0]) if proba and isinstance(proba[0], list) else 0
    else:
        kind = check_choice(heldout.get("dtype", "f4"), "PUT", "dtype", ("f4", "f8"))
        width, left = divmod(len(proba), int(kind[1]) * max(1, len(y)))
        if left or not y:
            fail("PUT", "heldout", f"have as many rows of {kind} numbers as labels",
                 f"{len(proba)} bytes and {len(y)} labels")  # fmt: skip
        proba = np.frombuffer(proba, f"<{kind}").reshape(len(y), width).astype(np.float64)
    check_size(width, limits)
    names = None if classes is None else check_classes(classes, width)
    pipe = fit_pipeline(proba, y, counts=None if counts is None else np.asarray(counts, np.float64), classes=names)
    if problem := label_mismatch(pipe.source, pipe.calibrator):
        log.warning("%s", problem)
    return pipe


def saved(data: bytes, query: Mapping[str, str], limits: Limits) -> Recipe:
    """Return the stream that bytes hold, or that a saved pipeline makes with the method and options of the query."""
    for key in query:
        check_choice(key, "PUT", "query", ("method", "options", "alarm", "stale_after"))
    choices = {key: text if key == "method" else parse_json(text.encode(), "PUT") for key, text in query.items()}
    kind = kind_of(data, "PUT", name="body")
    if kind == "stream" and (odd := [key for key in ("method", "options") if key in choices]):
        fail("PUT", "query", "leave out method and options, because the saved stream has its own", ", ".join(odd))
    if kind not in ("pipeline", "stream"):
        fail("PUT", "body", "hold a saved pipeline or stream", f"a {kind!r}")
    made = Pipeline.from_bytes(data) if kind == "pipeline" else Stream.from_bytes(data)
    check_size(len(made.source.prior), limits)
    return recipe(made, None if made.source.classes is None else list(made.source.classes), choices)


def check_size(n_classes: int, limits: Limits) -> None:
    if n_classes > limits.classes:
        fail("PUT", "source", f"have at most {limits.classes} classes", n_classes,
             remedy="Start the server with a larger --max-classes")  # fmt: skip


def alarm_options(value: Any, source: Source) -> dict[str, Any] | None:
    """Return the options of an alarm; by default a source with held-out rows has one and another has none."""
    if value is None:
        return {} if source.heldout is not None and len(source.heldout[1]) >= 2 else None
    if isinstance(value, bool):
        return {} if value else None
    if not isinstance(value, dict):
        fail("PUT", "alarm", "be true, false or an object of options", type(value).__name__)
    check_keys(value, ALARM_KEYS, "PUT")
    if not isinstance(value.get("exact", False), bool):
        fail("PUT", "exact", "be true or false", repr(value["exact"])[:80])
    return value
