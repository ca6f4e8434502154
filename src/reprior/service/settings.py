"""Settings of a server, fixed at its start: options, limits, tokens and clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from reprior._check import check_choice, fail
from reprior.service.outgoing import check_secret, check_target

ROLES = ("read", "ingest", "admin")  # each may do what those before it may
LEAP = 60.0  # seconds by which the system's clock may leap ahead and be followed at once
HOLD = 600.0  # seconds for which a larger leap must last before it is followed
# seconds that no one can set, counting also while the machine sleeps, if it can tell
steady_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
AGEING = 24.0  # times as fast as time passes: the most by which stored data age


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes at most; each limit is refused with a sentence that names it."""

    body: int = 32 << 20  # bytes
    classes: int = 10_000
    streams: int = 20_000
    clients: int = 10_000  # that a stream remembers the offsets of
    idle_seconds: float = 3_600.0  # after which a client makes room for another one
    gaps: int = 100  # ranges of missing numbers that a client's offset may hold
    rate: float = 5_000.0  # requests per second from one address, with as many at once
    watchers: int = 200  # open event streams
    waiting: int = 2_000  # posts that wait for a commit
    body_seconds: float = 30.0  # to send a request


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many seconds what is stored."""

    history: float = 366 * 86_400.0  # points of a stream's history, thinned out with age
    clients: float = 7 * 86_400.0  # the offset of a silent client
    events: float = 3_600.0  # the id of a CloudEvent
    rows: float = 7 * 86_400.0  # a row that has a prediction id, until its label comes


@dataclass(frozen=True, slots=True)
class Token:
    """A secret, what it allows, and the name under which the log speaks of it."""

    role: str
    name: str
    secret: str = field(repr=False)


def check_token(role: str, name: str, secret: str, caller: str) -> Token:
    """Return a token; one that is easily guessed or cannot be sent in a header is refused."""
    check_choice(role, "serve", f"role of the token {name!r}", ROLES)
    if len(secret) < 8 or not secret.isascii() or not secret.isprintable() or " " in secret:
        fail("serve", caller, "be at least 8 printable ASCII characters without a space", f"{len(secret)} characters")
    return Token(role, name, secret)


def read_tokens(file: Path, role: str, caller: str) -> list[Token]:
    """Return the tokens of a file: lines of `ROLE NAME TOKEN`, or one line with a token of the given role."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail("serve", caller, "name a file that can be read", f"{file.name} ({type(error).__name__})")
    lines = [parts for line in text.splitlines() if (parts := line.split()) and not parts[0].startswith("#")]
    if len(lines) == 1 and len(lines[0]) == 1:
        return [check_token(role, role, lines[0][0], caller)]
    tokens = []
    for number, parts in enumerate(lines, 1):
        if len(parts) != 3:
            fail("serve", caller, "have lines of ROLE NAME TOKEN", f"{len(parts)} words in line {number}")
        tokens.append(check_token(parts[0], parts[1], parts[2], caller))
    if not tokens:
        fail("serve", caller, "hold at least one token", f"none in {file.name}")
    return tokens


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server runs. `db` is None if nothing is to be kept, as in a benchmark."""

    db: Path | None
    tokens: list[Token] = field(default_factory=list)  # without any, everybody may do everything; may change
    hosts: tuple[str, ...] = ()  # values of the header Host that are answered; empty: all
    public_url: str | None = None  # where users reach the page, behind a proxy; messages link to it
    proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-For is believed
    limits: Limits = Limits()
    retention: Retention = Retention()
    point_seconds: float = 1.0  # between two points of a stream's history
    webhook: str | None = None
    stale_after: float = 3_600.0  # seconds without samples after which a stream is stale; 0: never
    webhook_private: bool = False  # whether the webhook may have an address of a private network or of this machine
    webhook_secret: str | None = field(default=None, repr=False)
    forward: str | None = None  # where CloudEvents are sent on to
    intakes: tuple[str, ...] = ()  # addresses of brokers to read from
    demo: bool = False  # feed streams of its own
    metric_streams: int = 2_000  # shown by `/metrics`, in the order of their creation
    metric_classes: int = 5  # of each stream: those that moved most

    def __post_init__(self) -> None:
        """Refuse addresses and secrets that would fail only when they are needed."""
        if self.webhook is not None:
            check_target(self.webhook, "--webhook", private=self.webhook_private)
        if self.webhook_secret is not None:
            check_secret(self.webhook_secret)
        if self.forward is not None:
            check_target(self.forward, "--forward", private=True)

    @property
    def root(self) -> str:
        """The path under which a proxy serves this server, without a slash at its end."""
        return urlsplit(self.public_url or "").path.rstrip("/")

    @property
    def origin(self) -> str | None:
        """The origin of the page behind a proxy."""
        parts = urlsplit(self.public_url or "")
        return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else None


class Clock:
    """Seconds since 1970 that never go back, and do not follow a leap of the system's clock at once.

    If the system's clock is set back, this one runs at half speed until they agree: points of a history must come one
    after the other. If it leaps ahead by more than a minute, this one follows when the leap has lasted ten minutes.
    """

    def __init__(
        self, start: float = 0.0, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_seconds
    ) -> None:
        self._wall, self.steady = wall, steady
        self._then, self._now = steady(), max(start, wall())
        self._leapt: float | None = None  # when the system's clock leapt ahead

    def __call__(self) -> float:
        wall, steady = self._wall(), self.steady()
        passed, self._then = steady - self._then, steady
        if wall - self._now - passed > LEAP:
            self._leapt = steady if self._leapt is None else self._leapt
            if steady - self._leapt < HOLD:
                self._now += passed
                return self._now
        self._leapt = None
        self._now = max(wall, self._now + (0.5 * passed if self._now > wall else 0.0))
        return self._now

    @property
    def ahead(self) -> float:
        """How many seconds it is ahead of the system's clock; negative while a leap of that clock is not followed."""
        difference = self() - self._wall()
        return 0.0 if abs(difference) < 1e-3 else difference


class Ages:
    """The time by which stored data age: it follows a clock, but at most 24 times as fast as time passes.

    A clock that is wrong for a minute thus ages nothing by more than half an hour, and a server that was down for a
    month forgets what is due within a day and a half.
    """

    def __init__(self, clock: Clock, start: float) -> None:
        self._clock, self._then = clock, clock.steady()
        self._now = min(start, clock()) if start else clock()

    def __call__(self) -> float:
        steady = self._clock.steady()
        most, self._then = self._now + AGEING * (steady - self._then), steady
        self._now = max(self._now, min(self._clock(), most))
        return self._now
