"""The live lane: filtered copies of tables, kept in sync over HTTP."""
