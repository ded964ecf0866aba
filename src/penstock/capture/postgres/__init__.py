"""How Postgres' log is captured: pgoutput into rows of the change log, the slot, snapshots."""
