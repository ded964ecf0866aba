"""Shapes whose condition has `column IN (SELECT …)`: kept exact while rows come and go in both tables.

Each inner SELECT is a hidden shape of its own. What it selects is a set of values (`values.ValueSet`), which
changes with the inner shape's rows (`materializer`). The condition is put into disjunctive normal form
(`normal_form`); each atom is a *position*, and a row is in the shape if some disjunct has only positions that
are active for it. NOT stands at atoms alone there, so activity can only bring rows in, never out.

**Effective sets.** A value whose position became active is *held* at first: the shape is evaluated as if it
were not. One that became inactive is so at once. So at every moment the shape holds the rows that are in by
the effective activity, and three things keep it so:

1. *A change of the shape's own table* is judged, before and after, by the effective activity.
2. *Deactivation*, at the end of transaction T: an event names (position, value). Clients know of each row its
   values (`tags`) and which positions are active (`active_conditions`), and drop rows that no disjunct is
   left of. They are exact because every row they got was told with the activity as it was, and every later
   change of it by an event, in the order of the log.
3. *Activation* (`moves`): rows that have one of the held values are asked for. The query names values only,
   not the inner tables, so its answer does not depend on what those are when it runs. Meanwhile changes go
   on under the old activity, and are remembered. The answer is spliced in when everything that its snapshot
   P shows has been handed out: an event that activates the values, the rows that are in by the new activity
   and were not by the old, and a snapshot-end. A row that a transaction has touched which P does not show is
   taken from there instead, as it is by now. No other order is needed: if P shows T2 and not the earlier T1,
   they have touched different rows, since a row's lock is held until its writer can be seen. A splice is
   told as of a transaction of its own, between those of the source.

   Values that became inactive while the query ran are not activated by it; positions that were lost while
   it ran are taken into account, because both activities are those of the moment of the splice.

4. *A null in what NOT IN asks about*, which came or went: it concerns every value, and no event can say that.
   So it counts as it did before until the rows of all values are there, asked for like those above. At the
   splice the nulls count that are there by then. Of the values that those rows have, events name the ones
   that are active and were not, then the ones that were and are not; the rows that come in follow.

**Inside one transaction** the shape's own changes come first, judged by what was before it; then inner sets
change, layer by layer, and events follow at (T, last operation + 2 + k).

**The first snapshot S** is one query with the inner SELECTs in it. The shape waits until all that S may show
was handed out. Of the transactions of all its tables S must show a first part and nothing of the rest: then
the inner sets at that cut are what the query saw, and what follows is as above. Else, or if an inner shape
that has subqueries itself had values held at the cut, the snapshot is not used and the client asks again.

**After a crash** all shapes are as of one position X (a commit has the items of all of them). Inner sets are
read from the inner shapes' snapshots and logs below X. Held values are kept with the shape (`held_state`), as
of positions up to the durable one, and asked for again. Splices are committed alone, in one record with what
is held afterwards, and right after a commit; so a splice is either there with its consequences or not at
all, and what is replayed from X is evaluated as it was before, and dropped by its offsets where it is known.

What was handed out before a crash must be seen by queries after the restart: by a first snapshot what the
inner sets have, by a query for held values what the shape has. It is not for as long as its commit waits for
a synchronous standby, and `RecentTransactions`, which tells of such, begins anew with the process. So before
the first query of each table after a start those who may be committing to it are waited for
(`source.earlier_writers`).
"""
