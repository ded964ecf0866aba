"""`penstock demo`: a real Postgres, loaded and followed into Parquet tables, and both sides compared.

Everything happens in one directory: the database, the pipeline file, its state and the tables. It is
temporary unless the caller keeps it. Whatever ends the demo, Ctrl-C too, no process is left behind.
"""

from __future__ import annotations

from penstock.demo.run import run_demo

__all__ = ["run_demo"]
