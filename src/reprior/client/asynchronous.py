"""The client for asyncio."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from reprior.client.batches import Batches
from reprior.client.blocking import Connection
from reprior.client.calls import MAX_BODY, Answer, Call, Calls, Reply, Request, at


class AsyncClient(Calls):
    """`Client` for asyncio: the same calls with ``await``, the same promises, and no extra package.

    One thread holds the connection, so the event loop never waits for the network. Tasks may share a client. Their
    posts go one after the other. If a task is cancelled, the post under way may or may not have been counted.

    >>> AsyncClient("http://127.0.0.1:8733", name="shop-1")
    AsyncClient('http://127.0.0.1:8733', name='shop-1')
    """

    def __init__(
        self, url: str, *, token: str | None = None, name: str | None = None, timeout: float = 30.0,
        patience: float | None = None, max_body: int = MAX_BODY,
    ) -> None:  # fmt: skip
        super().__init__(url, token=token, name=name, timeout=timeout, patience=patience, max_body=max_body)
        self._connection = Connection(self.url, self.timeout)
        self._thread = ThreadPoolExecutor(1, "reprior-client")
        self._lock = asyncio.Lock()

    async def _run(self, call: Call) -> Any:
        """Return what a call returns, after its requests and pauses."""
        reply: Reply | None = None
        loop = asyncio.get_running_loop()
        async with self._lock:
            while True:
                try:
                    step = call.send(reply)
                except StopIteration as end:
                    return end.value
                if isinstance(step, Request):
                    headers = self.headers(step)
                    reply = await loop.run_in_executor(self._thread, self._connection.exchange, step, headers)
                else:
                    await asyncio.sleep(step)

    async def close(self) -> None:
        """Close the connection."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put(
        self, stream: str, source: Any = None, *, classes: Any = None, method: str | None = None, alarm: Any = None,
        stale_after: float | None = None, heldout: tuple[Any, Any] | None = None, saved: Any = None, **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Make a stream, as `Client.put` does."""
        more = {"method": method, "alarm": alarm, "stale_after": stale_after, "options": options or None}
        call = self._put(stream, source, classes, heldout, saved, more)
        made: dict[str, Any] = await self._run(call)
        return made

    async def get(self, stream: str) -> dict[str, Any]:
        """Return the state of a stream, as `Client.get` does."""
        found: dict[str, Any] = await self._run(self._asked(Request("GET", at(stream))))
        return found

    async def renew(self, stream: str, saved: Any, *, by: str = "") -> int:
        """Begin a new model version of a stream, as `Client.renew` does."""
        number: int = await self._run(self._renew(stream, saved, by))
        return number

    async def state(self, stream: str) -> bytes:
        """Return a stream with everything it has learned, as `Client.state` does."""
        data: bytes = await self._run(self._asked(Request("GET", at(stream, "state"))))
        return data

    async def delete(self, stream: str) -> None:
        """Remove a stream with everything it has learned."""
        await self._run(self._delete(stream))

    async def alarms(self, stream: str) -> list[dict[str, Any]]:
        """Return the alarms of a stream, the newest first."""
        found: list[dict[str, Any]] = await self._run(self._alarms(stream))
        return found

    async def acknowledge(
        self, stream: str, alarm: Any, *, by: str, note: str = "", next: str = "restart"
    ) -> dict[str, Any]:
        """Acknowledge an open alarm, as `Client.acknowledge` does."""
        done: dict[str, Any] = await self._run(self._acknowledge(stream, alarm, by, note, next))
        return done

    async def silence(self, stream: str, seconds: float, *, by: str, note: str = "") -> dict[str, Any] | None:
        """Hold back messages about a stream for some seconds; 0 ends a silence. Return the silence that holds now."""
        held: dict[str, Any] | None = await self._run(self._silence(stream, seconds, by, note))
        return held

    async def send(self, stream: str, proba: Any, *, correct: bool = True) -> Answer:
        """Let a stream learn rows (n, K), and return them corrected, as `Client.send` does."""
        told: Answer = await self._run(self._send(stream, proba, correct))
        return told

    async def label(self, stream: str, proba: Any, y: Any) -> Answer:
        """Give the labels (n,) of rows (n, K) that were sent before."""
        told: Answer = await self._run(self._label(stream, proba, y))
        return told

    def batches(self, stream: str, **options: Any) -> Batches:
        """Return a `Batches`; its `add` never waits, so it may be called on the event loop."""
        return Batches(self, stream, **options)
