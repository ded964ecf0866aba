"""A change log that is begun anew, where all lanes can be made anew from the source.

The log cannot go on if the slot is gone or has moved past its end, or if the server is another one: another
instance led with a log of its own, a standby was promoted, somebody dropped the slot. Where tables of a lake
depend on the log, somebody must look. Where only shapes do, the log goes, reading begins at the slot's
position, or with a new slot, and the lane finds that what it has is not part of what comes now. A log that
cannot be read, or that a newer version wrote, is left for somebody to look at in any case.
"""

from __future__ import annotations

import shutil

from penstock import durable
from penstock.capture.source import CaptureSource
from penstock.capture.spec import LAKE_LANE, CaptureSpec
from penstock.ledger.lanes import LaneRegistry

_GONE = "log.gone"


def may_begin_anew(spec: CaptureSpec) -> bool:
    return spec.service is not None and bool(spec.lanes) and spec.renewable.issuperset(spec.lanes)


def decides(spec: CaptureSpec, lane: str) -> bool:
    """Whether it is this lane's to find out what becomes of a log that cannot go on.

    The lake's, where there is one: by its tables alone can be told that the log was left behind, and is to be
    set aside. Else any lane's that cannot be made anew.
    """
    if LAKE_LANE in spec.lanes:
        return lane == LAKE_LANE
    return lane not in spec.renewable or spec.renewable.issuperset(spec.lanes)


def begin_anew(spec: CaptureSpec, source: CaptureSource) -> None:
    """Have the next set-up find no log, lanes that are nowhere, and a source that can be read from now on."""
    assert spec.lanes_path is not None
    log = spec.log_directory
    gone = log.with_name(_GONE)
    with durable.storage_errors(f"Could not remove the change log in {log}."):
        LaneRegistry(spec.lanes_path).forget_positions()
        if gone.exists():  # a crash was here before us
            shutil.rmtree(gone)
        if log.exists():
            log.rename(gone)
            durable.sync_directory(log.parent)
            shutil.rmtree(gone)
    source.forget_lost()
