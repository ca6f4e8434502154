"""Clients of the service: blocking (`Client`), for asyncio (`AsyncClient`), and in the background (`Batches`).

They need nothing but NumPy. With msgpack installed, rows travel as raw bytes, without it as JSON.
"""

from reprior.client.asynchronous import AsyncClient
from reprior.client.batches import Batches
from reprior.client.blocking import Client
from reprior.client.bodies import Answer, ServiceError

__all__ = ["Answer", "AsyncClient", "Batches", "Client", "ServiceError"]
