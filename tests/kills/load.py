"""What goes in, without an end, and who reads what comes out: both outlive every kill."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trivium_native.errors import ConnectionFailed
from trivium_native.sync import SyncClient, connect
from trivium_native.values import FramedMessages, Publication

Numbers = npt.NDArray[np.int64]

#: records of a request
REQUEST: Final = 250
#: Seconds for a broker to come back, on a machine that has more to do.
PATIENCE: Final = 300.0
TO_SOURCE: Final = Publication(payload=b"", exchange="", routing_key="source")


def numbers_of(records: pa.RecordBatch) -> Numbers:
    """Those that are the payloads of some records."""
    texts = records.column("value").cast(pa.string())
    found: Numbers = pc.cast(texts, pa.int64()).to_numpy()
    return found


class Load(threading.Thread):
    """Publishes the numbers from 0 on to the stream ``source``, numbered: each is there once.

    It keeps at most ``lead`` numbers ahead of what ``planned`` says.
    """

    def __init__(self, url: str, planned: Callable[[], int], lead: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._planned = planned
        self._lead = lead
        self._is_over = threading.Event()
        #: how many numbers are there
        self.count = 0

    def run(self) -> None:
        with connect(self._url, timeout=PATIENCE) as client:
            producer = client.open_producer("load")
            while not self._is_over.is_set():
                if self.count >= self._planned() + self._lead:
                    self._is_over.wait(0.05)
                    continue
                payloads = [b"%d" % number for number in range(self.count, self.count + REQUEST)]
                numbered = replace(producer, sequence=self.count)
                client.publish_batch(FramedMessages.from_payloads(payloads, TO_SOURCE), numbered)
                self.count += REQUEST

    def stop(self) -> int:
        """Publish no more; how many numbers there are."""
        self._is_over.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "the load does not end"
        return self.count


class Follower(threading.Thread):
    """Reads the stream ``copy`` while it grows: what anybody has seen must stay."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._is_over = threading.Event()
        self._parts: list[Numbers] = [np.array([], np.int64)]
        #: how many records it has seen
        self.count = 0

    def run(self) -> None:
        with connect(self._url, timeout=PATIENCE) as client:
            while not self._is_over.is_set():
                try:
                    self._read(client)
                except ConnectionFailed:
                    # A request that was under way when the broker died: it asks again.
                    continue

    def _read(self, client: SyncClient) -> None:
        records = client.fetch_arrow("copy", 0, self.count, columns=["value"], max_wait=0.2)
        self._parts.append(numbers_of(records))
        self.count = int(records.schema.metadata[b"next_offset"])

    def stop(self) -> Numbers:
        """Read no more; what it has seen, in order."""
        self._is_over.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "the follower does not end"
        return np.concatenate(self._parts)


def read_copy(url: str) -> Numbers:
    """Everything that is in the stream ``copy``."""
    parts: list[Numbers] = []
    offset, end = 0, 1
    with connect(url, timeout=PATIENCE) as client:
        while offset < end:
            records = client.fetch_arrow("copy", 0, offset, columns=["value"])
            parts.append(numbers_of(records))
            offset = int(records.schema.metadata[b"next_offset"])
            end = int(records.schema.metadata[b"high_watermark"])
    return np.concatenate(parts)
