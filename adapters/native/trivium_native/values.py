"""What the clients take and give."""

from __future__ import annotations

from trivium_native.client.group_values import GroupDescription, GroupInfo, GroupMember
from trivium_native.client.reconnecting import Reconnect
from trivium_native.client.values import (
    AssignedPartition,
    Delivery,
    Fetched,
    FramedMessages,
    GroupOffset,
    Joined,
    Membership,
    OffsetCommit,
    OwnQueue,
    Part,
    PartitionInfo,
    PolicyInfo,
    Producer,
    Publication,
    QueueInfo,
    Record,
    Settlement,
    StoredBatch,
    StreamInfo,
)

__all__ = [
    "AssignedPartition",
    "Delivery",
    "Fetched",
    "FramedMessages",
    "GroupDescription",
    "GroupInfo",
    "GroupMember",
    "GroupOffset",
    "Joined",
    "Membership",
    "OffsetCommit",
    "OwnQueue",
    "Part",
    "PartitionInfo",
    "PolicyInfo",
    "Producer",
    "Publication",
    "QueueInfo",
    "Reconnect",
    "Record",
    "Settlement",
    "StoredBatch",
    "StreamInfo",
]
