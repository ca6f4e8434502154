"""Posts that the server makes itself: to addresses that were checked at its start, and nowhere else.

The address that a name stands for is looked up and checked for every connection, and the connection goes to that very
address. So a name that changes its address later does not lead into the server's own network.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from reprior._check import fail

TIMEOUT = 10.0  # seconds of one attempt, for each wait
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses inside IPv6 (RFC 6052)
PREFIX = "whsec_"
SECRET_BYTES = (24, 64)  # fewest and most, by the convention
MAKE_SECRET = "import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Forbidden(OSError):
    """The name stands for an address that this server does not post to."""


@dataclass(frozen=True, slots=True)
class Target:
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
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        fail("serve", option, "have a path of printable ASCII characters", shown,
             remedy=f"Write {quote(parts.path)!r}" if parts.path.isprintable() else "")  # fmt: skip
    try:
        host = parts.hostname.encode("idna").decode()
    except UnicodeError:
        fail("serve", option, "name a host", shown)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass  # a name is looked up when it is needed: it may not be known yet
    else:
        if why := forbidden(address, private):
            remedy = "" if forbidden(address, True) else "Allow it with --allow-private-webhook"
            fail("serve", option, "be an address that the server may post to", f"{address}, which is {why}",
                 remedy=remedy)  # fmt: skip
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


def meant(address: Address) -> list[Address]:
    """Return an address, and the IPv4 address that it stands for if it is one of a transition scheme."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else address.sixtofour
    teredo = address.teredo
    return [address, *([inner] if inner else []), *([teredo[1]] if teredo else [])]


def forbidden(address: Address, private: bool) -> str | None:
    """Return what kind of address it is if nothing is to be posted there, else None."""
    places = meant(address)
    if any(each.is_link_local for each in places):
        return "link-local"
    if any(each.is_multicast or each.is_unspecified or (each.is_reserved and each.version == 4) for each in places):
        return "no address of a server"
    return None if private or all(each.is_global for each in places) else "private"


def connected(target: Target) -> socket.socket:
    """Return a connection to an allowed address of a target."""
    refused: str | None = None
    last: OSError | None = None
    for *_, place in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
        host = str(place[0])
        if why := forbidden(ipaddress.ip_address(host.split("%")[0]), target.private):
            refused = why
            continue
        try:
            return socket.create_connection((host, target.port), TIMEOUT)
        except OSError as error:
            last = error
    if last is not None:
        raise last
    raise Forbidden(f"the address is {refused}")


class Checked(http.client.HTTPConnection):
    """A connection that opens its socket by `connected`, with TLS if the target asks for it."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.host, target.port, timeout=TIMEOUT)
        self._target = target

    def connect(self) -> None:
        made: Any = connected(self._target)
        if self._target.secure:
            made = ssl.create_default_context().wrap_socket(made, server_hostname=self._target.host)
        self.sock = made


def post(target: Target, body: bytes, headers: dict[str, str]) -> str | None:
    """Post a body; return None if it was taken, else what went wrong. No redirect is followed."""
    connection = Checked(target)
    try:
        connection.request("POST", target.path, body, {"Content-Type": "application/json", **headers})
        status = connection.getresponse().status
        return None if 200 <= status < 300 else f"status {status}"
    except Forbidden as error:
        return str(error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return getattr(error, "strerror", None) or type(error).__name__
    finally:
        connection.close()
