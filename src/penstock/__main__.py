"""`python -m penstock`, the same as `penstock`."""

from __future__ import annotations

from penstock.cli.main import main

main()
