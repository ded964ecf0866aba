"""The capture process: the log of one source, steps of the change log, acknowledgement."""
