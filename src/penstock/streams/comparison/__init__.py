"""Proves that a Kafka topic has every change of a range of the log once, and those of a key in their order.

What is compared. The log is made into events once more, by the lane's own selection, masks, routes and
encoder (`conversion`): what is expected. What a `read_committed` consumer finds in the topics is held against
it. An event is named by its stream and (tx, op), and a tombstone apart from its delete, as the headers of a
record name it. Of each stream the range is `[A, T)`:

- *T* is what the positions topic says the lane has sent of the stream: its own point while it loads, the
  lane's position after that (`load_state`); no further than the log is sealed.
- *A* is from where on the lane tells the stream's changes (`LoadState.since`), no earlier than the log begins
  or than was asked for. Of lanes that began before that was written down it is the point of the newest load
  in the topic, by its records' headers; else the first change of the stream that the topic has.

Why there is no false alarm, whoever writes meanwhile:

1. *T is read first, the topics' ends afterwards.* The standing was committed with all events below it, so
   they lie before those ends, or are dead letters. That transaction's end may not have been told to every
   partition yet, so a partition is read up to the end that it had, and not only to what can be read at once;
   if a transaction is left open there (a lane that was killed), that wait is given up after a while: it is
   not the one that has T, whose end is decided and told within moments.
2. *Letters are read between the two.* An event below T that is not in the topic is a dead letter from before
   T was committed. If it is replayed after the topic's end was read, it was a letter when those were read; if
   before, it is in the topic. So a letter excuses what is missing, and nothing else.
3. *Records beyond T, and before A,* are nobody's business. Rows of loads are no changes: they are counted.
4. *What was sent twice by order* (`rewinds`) may be there so often; it is written down before it is sent.
5. *What Kafka has deleted* by age or size is a beginning of each partition, and grows while it is read. What
   is missing is gone, and not missing, if it is not later than the first changes that are left (`deleted`).
   A compacted topic is not compared: any record of it may be gone.
6. *The log may go* while it is read: then all of it is done again from where it begins by then.
7. *The same bytes*: but for the time at which an event was made, which is left out on both sides
   (`encoding.sent_time`), encoding is a function of the log and of the lane's settings (`bulk`). Settings
   that were changed since make older records differ; a range behind the change does not.

Why a difference is not missed: both sides are cut into buckets by key, every record is in one by its own
key, and in a bucket each name is counted on both sides. Values are compared by 128 bits of SipHash under a
secret of this run. Records of a key must lie in one partition in the order of the log.

Bounded: rows of both sides are columns on disk (`spilled`), about `spilled.BUCKET_ROWS` of them are in memory
unless there are more than 128 times as many. The client library gives a Python object for each record;
so many of them are there at a time (`kafka.topic_reading`), and none of the log's events is one.
"""
