"""Alarms leave the house: posts to one address, signed, repeated until they are taken or given up.

What is to be sent is stored together with the state that raised the alarm, so a crash loses none. Header names and the
signature are those of the Standard Webhooks convention: HMAC-SHA256 over ``{id}.{timestamp}.{body}``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import logging
from urllib.parse import urlsplit

from reprior.service.hub import Hub
from reprior.service.store import StoreError

log = logging.getLogger("reprior.service")
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 3600.0  # seconds between two attempts
ATTEMPTS = 20  # about eight hours
TIMEOUT = 10.0
LOOK_SECONDS = 0.2


def signature(secret: str, number: str, timestamp: int, body: bytes) -> str:
    """Return the signature that a receiver can check."""
    signed = f"{number}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha256).digest()).decode()


def post(url: str, body: bytes, headers: dict[str, str]) -> str | None:
    """Post a body; return None if it was taken, else what went wrong. No redirect is followed."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        status = connection.getresponse().status
        return None if 200 <= status < 300 else f"status {status}"
    except (OSError, http.client.HTTPException) as error:
        return getattr(error, "strerror", None) or type(error).__name__
    finally:
        connection.close()


async def deliver(hub: Hub) -> None:
    """Send what waits in the outbox, for ever."""
    url, store = hub.settings.webhook, hub.store
    if url is None or store is None:
        return
    while True:
        for alarm, attempts, text in await hub.in_reader(store.due, hub.clock(), ATTEMPTS):
            body, now, number = text.encode(), int(hub.clock()), f"reprior-{alarm}"
            headers = {"webhook-id": number, "webhook-timestamp": str(now)}
            if hub.settings.webhook_secret:
                headers["webhook-signature"] = signature(hub.settings.webhook_secret, number, now, body)
            problem = await asyncio.to_thread(post, url, body, headers)
            due = hub.clock() + min(FIRST_PAUSE * 2**attempts, LONGEST_PAUSE)
            try:
                await hub.in_writer(store.sent, alarm, problem, attempts + 1, due)
            except StoreError:
                continue  # it is sent again; the receiver knows it by its id
            if problem:
                log.warning("alarm %s was not taken by the webhook (attempt %s): %s", alarm, attempts + 1, problem)
        await asyncio.sleep(LOOK_SECONDS)
