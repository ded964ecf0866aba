"""The capture process: one replication connection, steps of the change log, acknowledgement."""
