"""Record batches turned into Arrow arrays; needs pyarrow and numpy (``trivium[arrow]``)."""

from __future__ import annotations

from trivium_native.client.arrow import COLUMNS, TYPES, BatchConverter, to_arrow
from trivium_native.client.arrow_properties import topic_text

__all__ = ["COLUMNS", "TYPES", "BatchConverter", "to_arrow", "topic_text"]
