"""Proves that a table holds what its source holds, at one position, while both are in use.

Why there is no false alarm. A comparison is of two states of a stream at one position P of the source's log:

1. *The table is pinned first.* Its newest record names files that never change and a position T: the table
   holds every change that committed before T, and no other. A later commit of anybody makes another record.
2. *Then the source is pinned.* At Postgres, the snapshot is the one that the creation of a slot exports: it
   shows exactly the transactions whose commit record lies before the slot's consistent point P (correctness
   8). At MongoDB it is a cluster time, that of a write of ours: every connection can read as of it. MySQL and
   MariaDB share no snapshots: sessions of this process take one of each table at a place in the log that is
   exact for it (`sources.mysql.snapshots`), and stay in it until the table is compared. T lies in the log
   already when the snapshot is taken, so T ≤ P, whoever writes.
3. *The log between is applied, and not waited for.* Capture seals the log up to P. What the next round would
   make of the changes in `[T, P)` is made, by the very functions of a round (`lake.apply`), into files that
   nobody commits: the table as it would be at P (`view`). So writers, rounds and other tables may go on.
4. *Both sides are read in one form.* The source's rows are read as a load reads them, and some chunks of
   every table, drawn anew in each run, as the source prints them, cast as the log is: so neither way of
   reading is taken on trust. Each value on either side becomes the same words (`canonical`). What a column
   cannot hold is a dead letter in the table and none of the rows to compare.
   A log that may show later states than those of its positions is known to, by key (`moved`).
5. *Columns stood still.* The catalog is read on both sides of the snapshot, and a table whose file was
   replaced while it was read is compared again under another snapshot.

So if the two differ, then a round, a load, a file or the log is wrong, or somebody else wrote to the table.

Why a difference is not missed. Every row is hashed whole, with its key, by SipHash of 128 bits under a secret
of this run; the hashes of a bucket of keys are counted and summed (`digest`). Sums do not cancel as exclusive
ors would: a row that is there twice shows. Two buckets that differ in any row agree with a chance of 2^-128.

What is said of a difference comes from a second reading of the buckets that differ and no others (`drill`).

Bounded: a digest is at most 1.5 MiB however long the table is; a task has one block of rows; the second
reading keeps at most `drill.ROWS_MAX` rows, on disk, and says how much it left out.
"""
