"""Samples in the file that are later than the states of their streams, and from which commit on they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from reprior.service.pending import Change
from reprior.service.served import ServedStream


class SampleLog:
    """The samples of past commits, counted; `number` is that of the next commit."""

    def __init__(self, last: int, streams: Iterable[ServedStream]) -> None:
        self.number = last + 1
        self._since = {served: 0 for served in streams if served.log_bytes}  # first commit needed, the oldest first
        self._size = sum(served.log_bytes for served in self._since)
        self._sizes = deque([(last, self._size)])  # of each commit

    @property
    def needed(self) -> int:
        """The first commit whose samples are needed."""
        return next(iter(self._since.values()), self.number)

    def stored(self, streams: Iterable[ServedStream], changes: Iterable[Change]) -> None:
        """Note that a commit has stored the changes of streams."""
        size = 0
        for served, change in zip(streams, changes, strict=True):
            if change.samples is None:
                self.forget(served)
            elif not served.gone:
                self._since.setdefault(served, self.number)
                served.log_bytes += change.samples.size
                size += change.samples.size
        self._sizes.append((self.number, size))
        self._size += size
        self.number += 1
        while self._sizes and self._sizes[0][0] < self.needed:
            self._size -= self._sizes.popleft()[1]

    def overdue(self, most_bytes: int, most_streams: int | None = None) -> set[ServedStream]:
        """Return streams that have to write their state: those with the oldest samples, if there are too many bytes."""
        if self._size <= most_bytes:
            return set()
        oldest = set(islice(self._since, most_streams))
        for served in oldest:
            served.state_due = True
        return oldest

    def forget(self, served: ServedStream) -> None:
        """Note that the samples of a stream are not needed: its state is in the file, or it is deleted."""
        self._since.pop(served, None)
        served.log_bytes = 0
