"""Errors that a client gets as an answer: a status, and a sentence that says what is wrong."""

from __future__ import annotations


class RequestError(Exception):
    """An expected error; `status` and `headers` are those of the answer."""

    status = 400
    headers: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)


class Refused(RequestError):
    """A request that cannot be answered as it is."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or {}


class Missing(RequestError):
    """There is no such thing."""

    status = 404


class Conflict(RequestError):
    """It is there already, and different."""

    status = 409


class Unavailable(RequestError):
    """Try again later; the sentence says why."""

    status, headers = 503, {"Retry-After": "1"}


class StoreError(RequestError):
    """The file cannot be read or written now; the sentence says why. What was to be written is kept and retried."""

    status, headers = 503, {"Retry-After": "1"}
