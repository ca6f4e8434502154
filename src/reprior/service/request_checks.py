"""Which requests are answered at all: host, origin, rate and token; and the headers that bind a page."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from reprior.service.counters import RareLog
from reprior.service.errors import Refused
from reprior.service.settings import ROLES, Settings, Token
from reprior.service.wire import CLOSE

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]

HEADERS = [
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]  # fmt: skip
OPEN = ("/", "/healthz", "/openapi.json", "/v2/health/live", "/v2/health/ready", "/v2")  # and what is under /static/
INGESTS = ("/samples", "/labels", "/infer", "/events/cloudevents")  # ends of the addresses that take data
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Bucket:
    """Requests per second for each address, with as many at once; addresses that are silent are forgotten."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self._clock = rate, clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> bool:
        """Return whether one more is allowed."""
        now = self._clock()
        left, then = self._left.get(who, (self.rate, now))
        left = min(self.rate, left + (now - then) * self.rate)
        if len(self._left) > 10_000:
            self._left = {w: (x, t) for w, (x, t) in self._left.items() if now - t < 1.0}
        self._left[who] = (left - 1.0 if left >= 1.0 else left, now)
        return left >= 1.0


def role_needed(method: str, path: str) -> str | None:
    """Return the role that a request needs; None if anybody may send it."""
    if method in ("GET", "HEAD"):
        return None if path in OPEN or path.startswith("/static/") else "read"
    return "ingest" if path.endswith(INGESTS) else "admin"


def allowed(tokens: Iterable[Token], role: str, secret: str) -> bool:
    """Return whether a bearer token allows what a role may do; the time does not depend on how much of it fits."""
    enough, fits = ROLES[ROLES.index(role) :], False
    for token in tokens:
        fits |= hmac.compare_digest(secret.encode(), token.secret.encode()) and token.role in enough
    return fits


def token_sent(headers: dict[bytes, bytes]) -> str:
    """Return the bearer token of a request; "" if it has none."""
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class RequestChecks:
    """The checks that every request passes first."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.bucket, self.rare_log = settings, Bucket(settings.limits.rate), RareLog()

    def check(self, scope: Scope) -> None:
        """Refuse a request that may not be answered."""
        headers = scope["header_values"]
        self._check_page(scope["method"], headers)
        who = self._sender(scope, headers)
        if not self.bucket.take(who):
            sentence = f"At most {self.settings.limits.rate:g} requests per second are taken."
            raise Refused(429, sentence, {"Retry-After": "1", **CLOSE})
        role = role_needed(scope["method"], scope["path"])
        if role is None or not self.settings.tokens:
            return
        token = token_sent(headers)
        if allowed(self.settings.tokens, role, token):
            return
        if token:
            self.rare_log.line(("token", who), f"wrong token from {who} for {scope['method']} (role {role} needed)")
        what = {"read": "read", "ingest": "send data", "admin": "change something"}[role]
        why = "The token that was sent does not allow this" if token else "No token was sent"
        sentence = f"A bearer token is needed to {what}. {why}."
        raise Refused(401, sentence, {"WWW-Authenticate": "Bearer", **CLOSE})

    def _check_page(self, method: str, headers: dict[bytes, bytes]) -> None:
        """Refuse what a page elsewhere sends: its own name pointed at this address, or a post across origins."""
        host, hosts = headers.get(b"host", b"").decode("latin-1").lower(), self.settings.hosts
        if hosts and re.sub(r":\d+$", "", host) not in hosts:
            raise Refused(421, "The header Host must name this server. Start it with --allow-host or --public-url.",
                          CLOSE)  # fmt: skip
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if b"origin" not in headers or method in ("GET", "HEAD") or headers.get(b"sec-fetch-site") == b"same-origin":
            return
        if origin.split("://")[-1] != host and origin != self.settings.origin:
            raise Refused(403, "Requests from pages of other sites may not change anything.", CLOSE)

    def _sender(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Return the address that a request comes from; a trusted proxy names it."""
        client = scope.get("client")
        who = client[0] if client else ""
        if who in self.settings.proxies and b"x-forwarded-for" in headers:
            return headers[b"x-forwarded-for"].decode("latin-1").rsplit(",", 1)[-1].strip()[:50]
        return who
