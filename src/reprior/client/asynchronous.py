"""The client for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from reprior.client.batches import Batches
from reprior.client.blocking import Client
from reprior.client.bodies import Answer, ServiceError

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio: the same calls with ``await``, without an extra package.

    A `Client` runs in a thread, so the event loop never waits for the network. Tasks may share an `AsyncClient`. Their
    posts go one after the other. If a task is cancelled, the post under way may or may not have been counted.

    Parameters
    ----------
    url, options : as of `Client`.

    >>> AsyncClient("http://127.0.0.1:8733", name="shop-1")
    AsyncClient('http://127.0.0.1:8733', name='shop-1')
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.client = Client(url, **options)
        self._thread = ThreadPoolExecutor(1, "reprior-client")

    def __repr__(self) -> str:
        return f"Async{self.client!r}"

    async def _run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return what a call returns, after its requests and pauses."""
        cancelled = threading.Event()

        def pause(seconds: float) -> None:
            if cancelled.wait(seconds):
                raise ServiceError("The call was cancelled.")

        def work() -> T:
            self.client._sleep = pause
            return call(*args, **options)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            cancelled.set()

    async def close(self) -> None:
        """Close the connection."""
        await self._run(self.client.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put(self, stream: str, source: Any = None, **options: Any) -> dict[str, Any]:
        """Create a stream, as `Client.put` does."""
        return await self._run(partial(self.client.put, stream, source, **options))

    async def get(self, stream: str) -> dict[str, Any]:
        """Return the state of a stream, as `Client.get` does."""
        return await self._run(self.client.get, stream)

    async def renew(self, stream: str, saved: Any, *, by: str = "") -> int:
        """Start a new model version of a stream, as `Client.renew` does."""
        return await self._run(self.client.renew, stream, saved, by=by)

    async def state(self, stream: str) -> bytes:
        """Return a stream with everything it has learned, as `Client.state` does."""
        return await self._run(self.client.state, stream)

    async def delete(self, stream: str) -> None:
        """Remove a stream with everything it has learned."""
        await self._run(self.client.delete, stream)

    async def alarms(self, stream: str) -> list[dict[str, Any]]:
        """Return the alarms of a stream, the newest first."""
        return await self._run(self.client.alarms, stream)

    async def acknowledge(self, stream: str, alarm: Any, **options: Any) -> dict[str, Any]:
        """Acknowledge an open alarm, as `Client.acknowledge` does."""
        return await self._run(partial(self.client.acknowledge, stream, alarm, **options))

    async def silence(self, stream: str, seconds: float, *, by: str, note: str = "") -> dict[str, Any] | None:
        """Hold back messages about a stream for some seconds; 0 ends a silence. Return the silence that holds now."""
        return await self._run(self.client.silence, stream, seconds, by=by, note=note)

    async def send(self, stream: str, proba: Any, **options: Any) -> Answer:
        """Let a stream learn probabilities (n, K), and return them corrected, as `Client.send` does."""
        return await self._run(partial(self.client.send, stream, proba, **options))

    async def label(self, stream: str, proba: Any = None, y: Any = None, *, ids: Any = None) -> Answer:
        """Send the labels (n,) of samples (n, K) or prediction ids (n,) that were sent before."""
        return await self._run(self.client.label, stream, proba, y, ids=ids)

    def batches(self, stream: str, **options: Any) -> Batches:
        """Return a `Batches`; its `add` never waits, so it may be called on the event loop."""
        return Batches(self.client, stream, **options)
