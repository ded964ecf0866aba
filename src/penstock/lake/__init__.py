"""The lake lane: loads tables and applies the change log to them, as Spark jobs over Arrow data."""
