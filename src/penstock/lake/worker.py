"""What PySpark does in a Python worker between two tasks, made cheap.

Before each task it asks every importer for news, and those of its own zip files read their lists again;
after each task it collects garbage, walking everything that the libraries have ever made. Together that
cost 0.15 CPU-seconds per partition, as much as reading and decoding half a million rows. Neither can be
turned off, so the worker leaves them nothing to do: the importers of zip files are forgotten (the next
import makes new ones, from the lists Python keeps), and what was there after the first task is set aside as
permanent.
"""

from __future__ import annotations

import gc
import sys
import zipimport


def leave_little_to_do() -> None:
    """Call at the end of each task of a worker, in the worker."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
