"""Proves that a shape's rows are what its SELECT gives at one position, while applications write.

Both sides of one shape, in this order:

    1  the service is asked which shapes are ready: their first rows are complete       (`reading`)
    2  a snapshot S is taken at the source, then the position L of its log is read,
       and the SELECT of the shape is read under S                                      (`source.row_reader`)
    3  the shape is read from its beginning until all is in it that was committed
       below L; of its changes those count that S shows                                 (`reading`, `visible`)
    4  rows are held against each other, by key                                         (`held`)

Why there is no false alarm, whoever writes meanwhile:

- *Nothing that S shows is missing.* A transaction that S shows had its commit in the log before L was read
  (correctness 10). The service knows up to where all shapes have everything, and reads that before it looks
  for the shape's newest item: once that is L, an answer up to the newest has all of those transactions.
- *Nothing counts that S does not show.* A change names its transaction and where that commits; one at L or
  beyond, one that was running when S was taken, and one that began later is left out. Transactions that S
  does not show may come before others that it shows, but not for the same row: whoever changes a row last has
  waited for the one before to end, and S shows no one without all whom he has waited for. So of each row the
  changes that count are the first ones, and what they come to is the row as S shows it.
- *The first rows* were read under a snapshot that was taken before the shape was ready, so before S: all that
  it shows, S shows too. The changes that it showed are not in the shape's log (`engine.consumer`).
- *An update that compaction has put together* out of some that S shows and some that it does not cannot be
  taken apart: all is done again with another snapshot, and the shape is not compared if that does not help.
- *A shape that goes* meanwhile, and a table that was altered, are told as not compared.
- *The same text*: values are printed by the source under the same settings in a first answer and in the log;
  booleans alone are not (`source.sql`), and are brought to one spelling here.

Why a difference is not missed: each row of both sides is there under its key with every value, and a change
that a client could make nothing of (an update of a row that is not there) makes no row.

What is read is what clients are sent, item by item, from the storage that they are served from, through the
socket of `admin`: it does not count as a reader, so it keeps no shape from expiring, and makes none.

Not compared are shapes with subqueries, whose rows come and go with transactions of other tables without
saying which, and those that have no first rows (`log=changes_only`).

Bounded: rows of both sides are in a file (`held`), beside it at most 64 MiB of its pages, one chunk of the
shape (`chunk_bytes_threshold`) and one block of the source. The snapshot at the source is held for as long as
its rows are read, no longer.
"""
