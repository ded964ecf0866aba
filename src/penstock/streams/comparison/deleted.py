"""Up to which change records may be gone from a topic: Kafka deletes partitions' beginnings by age and size.

The records at the beginning of what is left are later than those that were deleted, but for replayed letters
and producers that write side by side: so the bound is the latest of the first so many. It is looked for when
the topic has been read: what was deleted while it was read lies before where it begins by then.
"""

from __future__ import annotations

from penstock.streams.kafka.topic_reading import Extent, TopicReader

ANYWHERE = -1  # as a partition
_ALL_OF_IT = 2**63 - 1


def deleted_to(reader: TopicReader, topic: str, head: int, *, keys_may_move: bool) -> dict[int, int]:
    """Of each partition that lacks its beginning, and of `ANYWHERE` in the topic; none, if all is there.

    `head`: how many records are looked at. With `keys_may_move` a record's partition is not known.
    """
    extents = reader.extents(topic)
    cut = {number: extent for number, extent in extents.items() if extent.low > 0}
    if not cut:
        return {}
    bounds = {number: _latest_of_head(reader, topic, number, extent, head) for number, extent in cut.items()}
    anywhere = max(bounds.values())
    return {**(dict.fromkeys(extents, anywhere) if keys_may_move else bounds), ANYWHERE: anywhere}


def _latest_of_head(reader: TopicReader, topic: str, number: int, extent: Extent, head: int) -> int:
    """The latest tx of a partition's first changes; rows of loads are none."""
    latest: list[int] = []
    for batch in reader.read(topic, {number: extent}, counts_others=False):
        for records in batch:
            if not records.chunk:
                latest += records.tx[: head - len(latest)].tolist()
        if len(latest) >= head:
            break
    return max(latest, default=_ALL_OF_IT)
