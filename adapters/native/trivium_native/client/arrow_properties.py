"""What publishers said of their messages: properties that record batches have no columns for.

They are decoded from the property bytes that each message keeps in its publisher's own encoding,
once for each distinct ones among the records that are read together. The protocols' adapters know
these encodings.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

import numpy
import pyarrow as pa
import pyarrow.compute as pc

from trivium.messages.message import PROTOCOL_NEUTRAL, Properties, codec_of, register_codec
from trivium.messages.neutral import NeutralCodec
from trivium.messages.topics import topic_of

logger = logging.getLogger(__name__)

#: the columns, and their types
PROPERTY_TYPES: Final = {
    "content_encoding": pa.string(),
    "correlation_id": pa.binary(),
    "reply_to": pa.string(),
    "reply_to_topic": pa.string(),
    "message_id": pa.string(),
    "publisher_timestamp": pa.timestamp("us", tz="UTC"),
    "type": pa.string(),
    "user_id": pa.string(),
    "app_id": pa.string(),
}
_SECOND: Final = 1_000_000
#: the last second of the year 9999, beyond which Python and Spark show no time
_LAST_SECOND: Final = 253_402_300_799


def topic_text(key: bytes) -> str:
    """The ``topic`` of a routing key: its MQTT form, or the key itself where it has none.

    Only an empty key and one that is not UTF-8 have none; bytes that are not UTF-8 become U+FFFD.
    """
    topic = topic_of(key)
    return (key if topic is None else topic).decode("utf-8", "replace")


def _reply_to_topic(properties: Properties) -> str | None:
    key = properties.reply_to_topic
    return None if key is None else topic_text(key)


def _timestamp(properties: Properties) -> int | None:
    seconds = properties.timestamp
    return None if seconds is None or seconds > _LAST_SECOND else seconds * _SECOND


_VALUES: Final[dict[str, Callable[[Properties], Any]]] = {
    "reply_to_topic": _reply_to_topic,
    "publisher_timestamp": _timestamp,
    "type": operator.attrgetter("type_"),
}


@functools.cache
def _load_codecs() -> None:
    """Have the adapters that are installed tell how to read their property bytes."""
    register_codec(PROTOCOL_NEUTRAL, NeutralCodec())
    for entry in entry_points(group="trivium.adapters"):
        try:
            make: Callable[[], object] = entry.load()
            make()
        except Exception as error:
            # An adapter may be anybody's code.
            logger.warning("the adapter for %r does not load: %s", entry.name, error)


class PublisherProperties:
    """The properties of records, by the numbers of their protocols and their property bytes."""

    def __init__(self, protocols: pa.Array, headers: pa.Array) -> None:
        _load_codecs()
        offsets = pa.py_buffer(numpy.arange(len(protocols) + 1, dtype="<i4"))
        numbers = [None, offsets, protocols.buffers()[1]]
        tags = pa.Array.from_buffers(pa.binary(), len(protocols), numbers)
        together = pc.binary_join_element_wise(tags, headers, pa.scalar(b"", pa.binary()))
        encoded = together.dictionary_encode()
        self._indices = encoded.indices
        distinct: list[bytes] = encoded.dictionary.to_pylist()
        self._found = [
            codec_of(each[0]).decode(each[1:]) if len(each) > 1 else Properties()
            for each in distinct
        ]

    def column(self, name: str) -> pa.Array:
        """One of ``PROPERTY_TYPES``; null where a message does not have it."""
        value = _VALUES.get(name, operator.attrgetter(name))
        values = [value(properties) for properties in self._found]
        return pa.array(values, PROPERTY_TYPES[name]).take(self._indices)
