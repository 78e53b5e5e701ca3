"""A member of a group that copies a stream in transactions, until it is killed.

``python -m tests.kills.member URL NAME``: each transaction has what was read and where to go on.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import replace

from trivium_native.client import connect
from trivium_native.errors import StaleMember
from trivium_native.values import Publication, Reconnect

#: Seconds at most that a member works on a batch, so that something can happen meanwhile.
WORK = 0.02


async def transform(url: str, name: str) -> None:
    async with connect(url, reconnect=Reconnect(first=0.01, longest=0.5)) as client:
        producer = await client.open_producer(name, transactional=True)
        async with client.join("transform", ["source"], session_timeout=3.0) as consumer:
            async for batch in consumer:
                copies = [
                    Publication(payload=record.payload, exchange="", routing_key="copy")
                    for record in batch.records()
                ]
                await asyncio.sleep(random.uniform(0, WORK))
                try:
                    commits = consumer.offsets()
                    async with client.transaction(producer) as transaction:
                        transaction.publish(*copies)
                        transaction.commit_offsets(commits)
                except StaleMember:
                    # Nothing of it was done; it comes again, here or elsewhere.
                    continue
                consumer.committed(commits)
                producer = replace(producer, sequence=producer.sequence + 1)


if __name__ == "__main__":
    asyncio.run(transform(sys.argv[1], sys.argv[2]))
