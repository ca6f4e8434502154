"""Tokens and their roles, from files that can be read again while the server runs."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from reprior._check import check_choice, fail

ROLES = ("read", "ingest", "admin")  # each may do what those before it may
OPEN = ("/", "/healthz", "/openapi.json", "/v2/health/live", "/v2/health/ready", "/v2")  # and what is under /static/
INGESTS = ("/samples", "/labels", "/infer", "/events/cloudevents")  # ends of the addresses that take data


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
        lines = [line.split() for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        fail("serve", caller, "name a file that can be read", f"{file.name} ({type(error).__name__})")
    lines = [parts for parts in lines if parts]
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


def role_needed(method: str, path: str) -> str | None:
    """Return the role that a request needs; None if anybody may send it."""
    if method in ("GET", "HEAD"):
        return None if path in OPEN or path.startswith("/static/") else "read"
    return "ingest" if path.endswith(INGESTS) else "admin"


class Access:
    """Who may do what; without any token, everybody everything. Replace `tokens` while the server runs to change it."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens = tuple(tokens)

    def allows(self, role: str, secret: str) -> bool:
        """Return whether a bearer token allows what a role may do; the time does not depend on how much fits."""
        if not self.tokens:
            return True
        enough, fits = ROLES[ROLES.index(role) :], False
        for token in self.tokens:
            fits |= hmac.compare_digest(secret.encode(), token.secret.encode()) and token.role in enough
        return fits
