"""The client for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from reprior.client.batches import Batches
from reprior.client.blocking import Client
from reprior.client.bodies import ServiceError

P = ParamSpec("P")
T = TypeVar("T")


def awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return a method of `Client` as a method of `AsyncClient`."""

    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._run(partial(method, self.client, *args, **options))

    return call


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

    async def _run(self, call: Callable[[], T]) -> T:
        """Return what a call returns, after its requests and pauses."""
        cancelled = threading.Event()

        def pause(seconds: float) -> None:
            if cancelled.wait(seconds):
                raise ServiceError("The call was cancelled.")

        def work() -> T:
            self.client.sleep = pause
            return call()

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

    put, get, renew = awaited(Client.put), awaited(Client.get), awaited(Client.renew)
    state, delete = awaited(Client.state), awaited(Client.delete)
    alarms, acknowledge, silence = awaited(Client.alarms), awaited(Client.acknowledge), awaited(Client.silence)
    send, label = awaited(Client.send), awaited(Client.label)

    def batches(self, stream: str, **options: Any) -> Batches:
        """Return a `Batches`; its `add` never waits, so it may be called on the event loop."""
        return Batches(self.client, stream, **options)
