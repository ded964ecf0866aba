"""The list of metrics is in the form that Prometheus asks for."""

from __future__ import annotations

import re

from penstock.metrics import BY_NAME, METRICS


def test_names_follow_the_conventions_of_prometheus() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"penstock_[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)
        assert metric.help.endswith(".")
