import numpy as np
import pytest

from bench.frames import (
    BATCH_BYTES,
    SEQUENCE,
    STAMP,
    FrameBlock,
    payload,
    payload_fields,
    rows_per_batch,
)


def test_a_block_repeats_its_frame_and_changes_only_its_columns() -> None:
    frame = b"HEAD" + payload(20) + b"T"
    block = FrameBlock(frame, payload_fields(4), 3)
    block.column(SEQUENCE)[:2] = [1, 0x0102030405060708]
    block.column(STAMP)[:2] = [7, 9]
    first = b"HEAD" + (1).to_bytes(8, "little") + (7).to_bytes(8, "little") + b"xxxxT"
    second = bytes.fromhex("0807060504030201") + (9).to_bytes(8, "little")
    assert bytes(block.take(2)) == first + b"HEAD" + second + b"xxxxT"
    assert bytes(block.take(3))[2 * len(frame) :] == frame


def test_columns_write_through_to_the_bytes_taken_before() -> None:
    block = FrameBlock(payload(16), payload_fields(0), 1)
    taken = block.take(1)
    block.column(SEQUENCE)[:] = np.uint64(5)
    assert taken[0] == 5


def test_a_payload_has_room_for_its_number_and_time() -> None:
    assert len(payload(64)) == 64
    with pytest.raises(ValueError, match="at least 16 bytes"):
        payload(15)


@pytest.mark.parametrize(
    ("frame_size", "most", "rows"),
    [(64, 1000, 1000), (64, 10**6, BATCH_BYTES // 64), (2 * BATCH_BYTES, 10, 1)],
)
def test_a_batch_is_bounded_by_count_and_bytes(frame_size: int, most: int, rows: int) -> None:
    assert rows_per_batch(frame_size, most) == rows
