"""Kinesis as a target: records one by one, and their tail read back after a crash."""
