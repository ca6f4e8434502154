"""Posts that the server makes itself: alarms to a webhook, and CloudEvents to a second sink.

The targets are checked at the start. The address that a name stands for is looked up and checked for every connection,
and the connection goes to that very address. So a name that changes its address later does not lead into the server's
own network.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import http.client
import ipaddress
import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from reprior._check import fail
from reprior.service.errors import StoreError

if TYPE_CHECKING:
    from reprior.service.hub import Hub

log = logging.getLogger("reprior.service")
TIMEOUT = 10.0  # seconds of one attempt, for each wait
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses inside IPv6 (RFC 6052)
PREFIX = "whsec_"
SECRET_BYTES = (24, 64)  # fewest and most, by the convention
MAKE_SECRET = "import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())"
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 3600.0  # seconds between two attempts to deliver a message
ATTEMPTS = 20  # about ten hours
LOOK_SECONDS = 0.2
MOST_QUEUED = 1_000  # events that may wait to be forwarded
# That an alarm is over is not sent before that it was raised.
DUE = (
    "SELECT id, attempts, body FROM outbox WHERE due <= ?1 AND attempts < ?2 AND NOT EXISTS (SELECT 1 FROM outbox AS o"
    " WHERE o.alarm = outbox.alarm AND o.rowid < outbox.rowid AND o.attempts < ?2) ORDER BY due LIMIT 10"
)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Target(NamedTuple):
    """Where posts go; `private` says whether addresses of private networks and of this machine are allowed."""

    secure: bool
    host: str
    port: int
    path: str
    private: bool


def check_target(url: str, option: str, *, private: bool) -> Target:
    """Return the parts of an address that the server is to post to, or refuse it."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://…" if parts.scheme else "no scheme"  # a URL may hold a password or a key
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fail("serve", option, "be an http or https URL with a host", shown)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        fail("serve", option, "have a port between 1 and 65535", shown)
    if parts.username is not None:
        fail("serve", option, "hold no user name", shown, remedy="Put a key into the path or the query")
    path = (parts.path or "/") + (parts.query and f"?{parts.query}")
    if not path.isascii() or not path.isprintable() or " " in path:
        fail("serve", option, "have a path of printable ASCII characters", shown,
             remedy=f"Write {quote(parts.path)!r}" if parts.path.isprintable() else "")  # fmt: skip
    try:
        host = parts.hostname.encode("idna").decode()
    except UnicodeError:
        fail("serve", option, "name a host", shown)
    try:
        why = forbidden(address := ipaddress.ip_address(host), private)
    except ValueError:
        why = None  # a name is looked up when it is needed: it may not be known yet
    if why:
        fail("serve", option, "be an address that the server may post to", f"{address}, which is {why}",
             remedy="" if forbidden(address, True) else "Allow it with --allow-private-webhook")  # fmt: skip
    return Target(parts.scheme == "https", host, port, path, private)


def check_secret(text: str) -> bytes:
    """Return the key that a secret such as ``whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`` holds."""
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    low, high = SECRET_BYTES
    if not low <= len(key) <= high:
        fail("serve", "REPRIOR_WEBHOOK_SECRET", f"be {PREFIX} and the base64 of {low} to {high} bytes",
             f"{len(text)} characters", remedy=f'Make one with `python -c "{MAKE_SECRET}"`')  # fmt: skip
    return key


def reached_addresses(address: Address) -> list[Address]:
    """Return the addresses that packets to an address may reach: with IPv6, also the IPv4 address embedded in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else address.sixtofour
    return [each for each in (address, inner, address.teredo and address.teredo[1]) if each]


def forbidden(address: Address, private: bool) -> str | None:
    """Return why the server must not post to an address, as a kind of address; None if it may."""
    reached = reached_addresses(address)
    if any(each.is_link_local for each in reached):
        return "link-local"
    if any(each.is_multicast or each.is_unspecified or (each.is_reserved and each.version == 4) for each in reached):
        return "no address of a server"
    return None if private or all(each.is_global for each in reached) else "private"


class CheckedConnection(http.client.HTTPConnection):
    """A connection to an allowed address of a target, with TLS if the target asks for it."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.host, target.port, timeout=TIMEOUT)
        self._target = target

    def connect(self) -> None:
        """Connect to the first allowed address of the host that answers; raise the last error if none does."""
        target, problem = self._target, OSError()
        for *_, place in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
            host = str(place[0])
            try:
                if why := forbidden(ipaddress.ip_address(host.split("%")[0]), target.private):
                    raise OSError(0, f"the address is {why}")
                self.sock = socket.create_connection((host, target.port), TIMEOUT)
                break
            except OSError as error:
                problem = error
        else:
            raise problem
        if target.secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=target.host)


def post(target: Target, body: bytes, headers: dict[str, str]) -> str | None:
    """Post a body; return None if it was taken, else what went wrong. No redirect is followed."""
    connection = CheckedConnection(target)
    try:
        connection.request("POST", target.path, body, {"Content-Type": "application/json", **headers})
        status = connection.getresponse().status
        return None if 200 <= status < 300 else f"status {status}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return getattr(error, "strerror", None) or type(error).__name__
    finally:
        connection.close()


# alarms


def signature(key: bytes, number: str, timestamp: int, body: bytes) -> str:
    """Return the signature of the Standard Webhooks convention: HMAC-SHA256 over ``{id}.{timestamp}.{body}``."""
    signed = f"{number}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


async def deliver(hub: Hub) -> None:
    """Post the messages of the outbox to the webhook until each is taken or given up, until the server stops.

    A message is stored together with the state that led to it, so a crash loses none.
    """
    settings, store = hub.settings, hub.store
    if settings.webhook is None or store is None:
        return
    target = check_target(settings.webhook, "--webhook", private=settings.webhook_private)
    key = None if settings.webhook_secret is None else check_secret(settings.webhook_secret)

    def note(number: str, attempts: int, problem: str | None, due: float) -> None:
        with store.transaction() as db:
            if problem is None:
                db.execute("DELETE FROM outbox WHERE id = ?", (number,))
            else:
                db.execute("UPDATE outbox SET attempts = ?, due = ?, problem = ? WHERE id = ?",
                           (attempts, due, problem, number))  # fmt: skip

    while True:
        for number, before, text in await hub.workers.read(store.read, DUE, (hub.clock(), ATTEMPTS)):
            body, now, attempts = text.encode(), int(time.time()), before + 1
            headers = {"webhook-id": number, "webhook-timestamp": str(now)}
            if key is not None:
                headers["webhook-signature"] = signature(key, number, now, body)
            problem = await asyncio.to_thread(post, target, body, headers)
            due = hub.clock() + min(FIRST_PAUSE * 2**before, LONGEST_PAUSE)
            try:
                await hub.workers.write(note, number, attempts, problem, due)
            except StoreError:
                continue  # it is sent again; the receiver knows it by its id
            if problem and attempts >= ATTEMPTS:
                log.error("message %s is given up after %s attempts: %s", number, ATTEMPTS, problem)
            elif problem:
                log.warning("message %s was not taken by the webhook (attempt %s): %s", number, attempts, problem)
        await asyncio.sleep(LOOK_SECONDS)


# events


class Forwarder:
    """Sends events on to a second sink, as they came, in order; those it cannot take in time are counted as dropped."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.queue = hub, asyncio.Queue[tuple[bytes, dict[str, str]]](MOST_QUEUED)

    def put(self, headers: Any, body: bytes) -> None:
        """Let an event wait to be sent, if there is a second sink."""
        if self.hub.settings.forward is None:
            return
        kept = {k: v for k, v in headers.items() if k.lower().startswith("ce-") or k.lower() == "content-type"}
        try:
            self.queue.put_nowait((body, kept))
        except asyncio.QueueFull:
            self.hub.counters.forward_dropped += 1

    async def run(self) -> None:
        """Send the events that wait, until the server stops."""
        if self.hub.settings.forward is None:
            return
        target = check_target(self.hub.settings.forward, "--forward", private=True)
        while True:
            body, headers = await self.queue.get()
            if problem := await asyncio.to_thread(post, target, body, headers):
                self.hub.counters.forward_dropped += 1
                log.warning("an event was not taken by the second sink: %s", problem)
