"""Who may do what: host, origin, token, rate; and the headers that keep a page from doing more than it should."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from reprior.service.settings import Settings
from reprior.service.wire import error_body

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Asgi = Callable[[Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

HEADERS = [
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]  # fmt: skip
OPEN = ("/", "/healthz", "/openapi.json", "/v2/health/live", "/v2/health/ready", "/v2")  # and what is under /static/
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Bucket:
    """Requests a second for each address, with as many at once; addresses that are silent are forgotten."""

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


def same(given: str, token: str | None) -> bool:
    """Return whether two tokens are equal, in a time that does not tell how much of them is."""
    return token is not None and hmac.compare_digest(given.encode(), token.encode())


def guarded(app: Asgi, settings: Settings) -> Asgi:
    """Return the app behind its checks."""
    bucket = Bucket(settings.limits.rate)

    def refusal(scope: Scope) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        host = headers.get("host", "")
        # a page elsewhere may point its own name at this address, or post to it: neither speaks for the user
        if settings.hosts and host.rsplit(":", 1)[0].lower() not in settings.hosts and host not in settings.hosts:
            return 421, "The header Host must name this server.", []
        origin = headers.get("origin")
        if origin is not None and method not in ("GET", "HEAD") and origin.split("://")[-1].lower() != host.lower():
            return 403, "A page from elsewhere may not change anything here.", []
        client = scope.get("client")
        if not bucket.take(client[0] if client else ""):
            return 429, f"At most {settings.limits.rate:g} requests a second are taken.", [(b"retry-after", b"1")]
        if path in OPEN or path.startswith("/static/"):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        writes = method not in ("GET", "HEAD")
        needed = settings.token if writes else settings.read_token
        if needed is None or same(given, settings.token) or (not writes and same(given, settings.read_token)):
            return None
        what = "change something" if writes else "read"
        return 401, f"A bearer token is needed to {what}.", [(b"www-authenticate", b"Bearer")]

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        refused = refusal(scope)
        if refused is None:
            await app(scope, receive, sending)
            return
        status, sentence, more = refused
        body = error_body(status, sentence)
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers = [*head, (b"connection", b"close"), *more]
        await sending({"type": "http.response.start", "status": status, "headers": headers})
        await sending({"type": "http.response.body", "body": body})

    return guard
