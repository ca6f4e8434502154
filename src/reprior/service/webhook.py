"""Alarms are posted to one address, signed, and repeated until they are taken or given up.

A message is stored together with the state that led to it, so a crash loses none. Headers and signature follow the
Standard Webhooks convention: HMAC-SHA256 over ``{id}.{timestamp}.{body}`` with the secret that base64 holds.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time

from reprior.service.errors import StoreError
from reprior.service.hub import Hub
from reprior.service.outgoing import check_secret, check_target, post

log = logging.getLogger("reprior.service")
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 3600.0  # seconds between two attempts
ATTEMPTS = 20  # about ten hours
LOOK_SECONDS = 0.2


def signature(key: bytes, number: str, timestamp: int, body: bytes) -> str:
    """Return the signature that a receiver can check."""
    signed = f"{number}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


async def deliver(hub: Hub) -> None:
    """Send what waits in the outbox, until the server stops."""
    settings, store = hub.settings, hub.alarms.store
    if settings.webhook is None or store is None:
        return
    target = check_target(settings.webhook, "--webhook", private=settings.webhook_private)
    key = None if settings.webhook_secret is None else check_secret(settings.webhook_secret)
    while True:
        for number, attempts, text in await hub.workers.read(store.due, hub.clock(), ATTEMPTS):
            body, now = text.encode(), int(time.time())
            headers = {"webhook-id": number, "webhook-timestamp": str(now)}
            if key is not None:
                headers["webhook-signature"] = signature(key, number, now, body)
            problem = await asyncio.to_thread(post, target, body, headers)
            due = hub.clock() + min(FIRST_PAUSE * 2**attempts, LONGEST_PAUSE)
            try:
                await hub.workers.write(store.sent, number, problem, attempts + 1, due)
            except StoreError:
                continue  # it is sent again; the receiver knows it by its id
            if problem and attempts + 1 >= ATTEMPTS:
                log.error("message %s is given up after %s attempts: %s", number, ATTEMPTS, problem)
            elif problem:
                log.warning("message %s was not taken by the webhook (attempt %s): %s", number, attempts + 1, problem)
        await asyncio.sleep(LOOK_SECONDS)
