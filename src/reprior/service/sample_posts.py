"""A post of samples, the request that comes most: the shortest way from its bytes to the bytes of its answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import fail
from reprior._kernels import loops
from reprior._kernels.reference import REFUSED
from reprior.service.hub import Hub
from reprior.service.posts import Answer, Post
from reprior.service.receipts import check_seq
from reprior.service.request_checks import HEADERS, Scope
from reprior.service.wire import MSGPACK, body_of, check_keys, content_type, json_bytes, pack, parse, wants_msgpack

KEYS = ("proba", "dtype", "client", "seq", "correct", "ids")
BODIES = {False: b"application/json", True: b"application/msgpack"}
HEAD = b"".join(b"%s: %s\r\n" % header for header in HEADERS)


async def post_samples(hub: Hub, scope: Scope, receive: Any) -> tuple[bytes, list[Any]]:
    """Learn samples and return the answer with them corrected: its content type, and the parts of its body."""
    headers = scope["header_values"]
    kind = content_type(headers.get(b"content-type", b"application/json").decode("latin-1"))
    packed = wants_msgpack(headers.get(b"accept", b"").decode("latin-1"), kind)
    limits = hub.settings.limits
    text = await body_of(scope, receive, limits.body, limits.body_seconds)
    name = scope["path"].split("/")[2]
    body, nine_digits = parse_samples(text, kind, hub.get(name).n_classes)
    check_keys(body, KEYS, "samples")
    if "proba" not in body:
        fail("samples", "proba", "be a list of rows", "nothing")
    client, seq = check_seq(body.get("client"), body.get("seq"))
    correct = body.get("correct", True)
    if not isinstance(correct, bool):
        fail("samples", "correct", "be true or false", repr(correct)[:80])
    post = Post(body["proba"], client, seq, body.get("dtype"), correct, body.get("ids"))
    learned = await hub.posts.samples(name, post)
    return BODIES[packed], [pack(learned.fields())] if packed else json_answer(learned, nine_digits)


def parse_samples(text: bytes, kind: str, n_classes: int) -> tuple[dict[str, Any], bool]:
    """Return the object of a body, and whether its numbers have at most nine significant digits, as those of float32.

    `proba` of a JSON body is an array (n, K) if these are plain rows of numbers. The rows are read apart from the other
    keys. If anything about them is unusual, the general parser reads all.
    """
    key = -1 if kind in MSGPACK else text.find(b'"proba"')
    start = text.find(b"[", key)
    if key >= 0 and text[key + 7 : start].strip() == b":":
        parsed = loops.parse_rows(text, start, n_classes)
        if parsed is not None:
            values, end, wide = parsed
            body = parse(b"%s0%s" % (text[:start], text[end:]), kind, "samples")
            if body.get("proba") == 0:  # else there is another key of that name
                body["proba"] = np.frombuffer(values).reshape(-1, n_classes)
                return body, not wide
    return parse(text, kind, "samples"), False


def json_answer(learned: Answer, nine_digits: bool) -> list[Any]:
    """Return the parts of an answer as JSON; corrected probabilities have as many digits as those that came: nine, or
    all."""
    fields = learned.fields()
    if nine_digits and learned.proba is not None:
        rows = loops.format_rows(np.ascontiguousarray(fields.pop("proba")))
        if rows != REFUSED:
            return [b'{"proba":', rows, b",", json_bytes(fields)[1:]]
        fields = learned.fields()
    return [json_bytes(fields)]


async def send_whole(send: Any, kind: bytes, parts: list[Any]) -> None:
    """Send a successful answer, with one write if the server is uvicorn: each write costs as much as all the rest."""
    length = b"%d" % sum(map(len, parts))
    cycle: Any = getattr(send, "__self__", None)
    if type(cycle).__name__ != "RequestResponseCycle" or not hasattr(cycle, "flow"):
        headers = [(b"content-type", kind), (b"content-length", length), *HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"".join(parts)})
        return
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    close = b"" if cycle.keep_alive else b"connection: close\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %s\r\n%s%s\r\n" % (kind, length, HEAD, close)
    cycle.transport.writelines((head, *parts))
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
