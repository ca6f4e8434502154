"""What a stream is made of: method, source, class names and the options of its alarm, as one value and as bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from reprior._types import Source
from reprior.online.alarm import Alarm
from reprior.online.stream import Stream
from reprior.rows.stored import from_fields, to_fields
from reprior.state import decode, encode

RUN_LENGTH = 1e6  # samples between two false alarms: a server has many more streams than a notebook
PARTS = ("prior", "confusion", "hard_confusion", "counts", "heldout")  # of a source, stored if it has them


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """One model version of a stream: fixed until a new version replaces it. Streams made alike share it."""

    digest: bytes  # of the bytes it was read from
    first: Stream  # before any sample
    source: Source
    alarm_options: dict[str, Any] | None
    false_alarms: str | None  # the sentence that says how often an alarm is false
    stale_after: float | None
    state_size: int  # bytes

    @property
    def classes(self) -> list[str]:
        """The names of the classes; their column numbers if they have no names."""
        return list(self.source.called)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A new stream, or a new version of one, as it is stored: the definition, the first state, and the alarm's test
    before any sample, if any."""

    definition: bytes
    state: bytes
    test: bytes | None
    n: int  # samples that a saved stream has learned elsewhere


def encoded(
    stream: Stream, source: Source, classes: list[str] | None = None, alarm: dict[str, Any] | None = None,
    stale_after: float | None = None,
) -> Recipe:  # fmt: skip
    """Return the recipe of a stream; `alarm` has the options of its alarm, None for no alarm. Bad ones are refused.

    `stale_after` is in seconds without samples: 0 for never, None for the server's setting.
    """
    options = None if alarm is None else {"run_length": RUN_LENGTH, **alarm}
    test = None if options is None else Alarm(source, **options).to_bytes()
    fields: dict[str, Any] = {"classes": classes, "alarm": options, "stale_after": stale_after,
                              "stream": stream.to_bytes(), **to_fields(source, parts=PARTS)}  # fmt: skip
    return Recipe(encode("served stream", fields), state_bytes(stream), test, stream.n)


def decoded(definition: bytes) -> StreamDefinition:
    """Return the definition that `encoded` wrote."""
    fields = decode(definition, "served stream", "serve")
    classes, options = fields["classes"], fields["alarm"]
    source = replace(from_fields(fields, "serve")[0], classes=None if classes is None else tuple(classes))
    first = Stream.from_bytes(fields["stream"].tobytes())
    return StreamDefinition(
        digest_of(definition), first, source, options, false_alarms(options), fields["stale_after"],
        len(state_bytes(first)),
    )  # fmt: skip


def digest_of(definition: bytes) -> bytes:
    """Return the SHA-256 of a definition, by which equal definitions are found."""
    return sha256(definition).digest()


def state_bytes(stream: Stream) -> bytes:
    """Return what a stream has learned, without its definition, as little-endian float64."""
    return stream.state.values.astype("<f8", copy=False).tobytes()


def false_alarms(options: dict[str, Any] | None) -> str | None:
    """Return the sentence that says how often an alarm with these options is false."""
    if options is None:
        return None
    if options.get("mode", "monitor") == "ever":
        return f"The chance of a false alarm is at most {options.get('alpha', 0.01):.3g}, however long it runs."
    return f"False alarms are on average at least {options['run_length']:,.0f} samples apart."
