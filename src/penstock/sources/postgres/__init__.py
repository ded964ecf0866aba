"""Postgres as a source: connections, catalog, prerequisites, publication, slots, chunks, types."""
