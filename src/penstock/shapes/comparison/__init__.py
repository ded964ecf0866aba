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

**Shapes with subqueries** (`at_cuts`). Their rows come and go with transactions of other tables, without
saying which, and come late: a value that became active is held until its rows were asked for, and those are
told as of a transaction of their own (`shapes.subquery`). So it is the service that says what the shape had
as of a snapshot, since it knows what it holds, and in which order it did what:

    1  the service notes from now on what it does with the shape (`subquery.watch`); who may be committing at
       that moment is waited for                                                    (`source.earlier_writers`)
    2  a snapshot S is taken of all tables of the SELECT, then the position L of the log is read
    3  once it has handed out all up to L, the service says which transaction is the *cut*: of all of these
       tables S shows what is up to there, and nothing behind. If there is none, another snapshot is taken
    4  under S the SELECT is read, and with it the rows that are pending: those with a value that the service
       held at some time since 1, in the shape or in one inside it                            (`pending`)
    5  the shape is read: its first rows, and of its log what it had as of the cut            (`tagged`)
    6  rows that differ and are not pending are told. Those that are pending are left open: they are looked at
       again from 1 on, a few times. A row that was once equal is not

- *S is the state at the cut.* What was handed out before 1 had its commit in the log by then; whoever was not
  to be seen yet was waited for, so S shows it. What was handed out since, the service asks S about, each with
  its id. What was not handed out by 3 commits at L or beyond, so S does not show it.
- *What the shape is to have at the cut, the service knows.* Its rows are those that its condition selects by
  the effective activity of values (`shapes.subquery`), which is that of the inner rows at the cut but for the
  values that are held. A row that has no such value, at no subquery, is in the shape exactly if the SELECT
  has it; neither has a row that its table does not have. A shape inside that has subqueries itself differs
  from its SELECT at rows that are pending in it at most, so values that these select count as held. A null
  that came to what NOT IN asks about, or went, or may have, makes all rows pending.
- *What its clients had at the cut, its log tells.* Its items are told in order, each as of its transaction;
  but a splice that the service made later may be told as of one before the cut. It says which, and they are
  left out, with what they brought about. So a row that is there has the values that it had at the cut.
- *A lasting difference is found*, since it is one at each look: it is told at the first at which nothing that
  the row has is held. A row of which something is held each time, and that differs each time, is told as not
  compared. What the service does not hold, it does not wait for: a row that it has forgotten is a difference.

Not compared are shapes that have no first rows (`log=changes_only`).

Bounded: rows of both sides are in a file (`held`), beside it at most 64 MiB of its pages, one chunk of the
shape (`chunk_bytes_threshold`) and one block of the source; the service keeps up to 16 MiB of values, and the
numbers of a million transactions. The snapshot at the source is held for as long as its rows are read, and
with subqueries until the service is there; no longer.
"""
