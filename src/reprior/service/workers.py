"""Threads for what would hold up the event loop: writing, reading, diagnosing and fitting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """The threads of one server, each kind with its own queue."""

    def __init__(self) -> None:
        self._writer = ThreadPoolExecutor(1, "reprior-writer")
        self._readers = ThreadPoolExecutor(2, "reprior-reader")
        self._thinker = ThreadPoolExecutor(1, "reprior-thinker")
        self._maker = ThreadPoolExecutor(1, "reprior-maker")

    async def write(self, work: Callable[..., T], *args: Any) -> T:
        """Run something that changes the file, after what was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, *args)

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        """Run something that reads the file."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *args)

    async def think(self, work: Callable[..., T], *args: Any) -> T:
        """Run a diagnosis: it takes seconds with thousands of classes, and no reader waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thinker, work, *args)

    async def make(self, work: Callable[..., T], *args: Any) -> T:
        """Run something that a new stream is made by, which may be a fit of seconds."""
        return await asyncio.get_running_loop().run_in_executor(self._maker, work, *args)

    def stop(self) -> None:
        """Wait for what is under way and end."""
        for pool in (self._writer, self._readers, self._thinker, self._maker):
            pool.shutdown()
