"""What is committed: the state file, its two-phase commit, recovery decisions, checkpoints.

Everything that says "this is committed" on our side lives here; the destinations' own markers are
asked first and trusted more.
"""
