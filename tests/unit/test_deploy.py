"""What is in `deploy/` can be read by what it is for, names only what exists, and runs without rights.

Others than us read it where they come with the tools of development: the Compose specification's schema,
hadolint, a parser of PromQL. Whether it runs is not shown here: that needs Docker, a cluster, a machine with
systemd. `helm` and `systemd-analyze` come in no wheel; where they are installed, they are asked too. Without
`helm` templates are not rendered, only looked through.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from penstock.config import Config
from penstock.config.console import ConsoleConfig
from penstock.metrics import (
    BY_NAME,
    CHECKPOINT_FAILURES,
    METRICS,
    RECONNECTS,
    RESTARTS,
    SAMPLES_DROPPED,
    VERIFY_FAILURES,
    VERIFY_TIMESTAMP,
)

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "penstock"
RULES = DEPLOY / "prometheus" / "penstock.rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "penstock.json"
UNIT = DEPLOY / "systemd" / "penstock@.service"
USER = "10001"
_METRIC = re.compile(r"\bpenstock_[a-z0-9_]+")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def all_under(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from ([value[key]] if key in value else [])
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from all_under(inner, key)


def lint(*command: str | Path) -> None:
    """Have a program that pip installed, or one that is on the path, look at something and find nothing."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which(str(command[0]), path=places)
    assert program is not None, f"{command[0]} is not installed: it is one of the extra `dev`"
    looked = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    assert looked.returncode == 0, looked.stdout + looked.stderr


def expressions() -> Iterator[str]:
    """Of all alerts and panels; what Grafana fills in is filled in."""
    yield from all_under(read_yaml(RULES), "expr")
    for text in all_under(json.loads(DASHBOARD.read_text()), "expr"):
        yield text.replace("$__rate_interval", "5m")


def _without_texts(template: str) -> str:
    return re.sub(r'"[^"\n]*"', '""', template)


def load_pipeline(text: str, directory: Path) -> Config:
    """The pipeline file, with the URL or the password that it expects in a file."""
    secret = directory / "secret"
    secret.write_text("postgresql://app:secret@db:5432/shop" if "url: ${file:" in text else "secret")
    path = directory / "penstock.yaml"
    path.write_text(re.sub(r"\$\{file:[^}]*\}", f"${{file:{secret}}}", text))
    return Config.load(path)


class TestMonitoring:
    def test_alerts_name_only_metrics_that_exist(self) -> None:
        rules = [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]
        assert len({rule["alert"] for rule in rules}) == len(rules)
        for rule in rules:
            assert set(_METRIC.findall(rule["expr"])) <= BY_NAME.keys(), rule["alert"]
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"]

    def test_prometheus_could_evaluate_every_expression(self) -> None:
        found = [promql_parser.parse(text) for text in expressions()]
        assert len(found) > 80

    @pytest.mark.parametrize("wrong", ["rate(penstock_rounds_total)", "sum by lane (x)", "no_function(x)"])
    def test_what_prometheus_could_not_evaluate_is_found(self, wrong: str) -> None:
        with pytest.raises(ValueError, match=r"expected|invalid|unknown"):
            promql_parser.parse(wrong)

    def test_alerts_wait_for_times_that_prometheus_reads(self) -> None:
        for group in read_yaml(RULES)["groups"]:
            assert group.keys() <= {"name", "interval", "rules"}
            for rule in group["rules"]:
                assert rule.keys() <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
                assert "for" not in rule or promql_parser.parse_duration(rule["for"]), rule["alert"]

    def test_alerts_and_panels_name_only_labels_that_their_metric_has(self) -> None:
        always = {"job", "instance", "severity"}
        rules = [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]
        texts = [(rule["expr"], str(rule["annotations"])) for rule in rules]
        panels = json.loads(DASHBOARD.read_text())["panels"]
        texts += [
            (each["expr"], each["legendFormat"]) for each in all_under(panels, "targets") for each in each
        ]
        for expression, shown in texts:
            known = {label for name in _METRIC.findall(expression) for label in BY_NAME[name].labels} | always
            named = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", shown))
            named |= {
                label.strip()
                for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
                for label in group.split(",")
            }
            assert named <= known, expression

    def test_alerts_on_what_grew_see_also_what_was_not_there_before(self) -> None:
        """`increase` and `delta` of a series that has just begun are 0, whatever it begins with."""
        from_zero = {
            metric.name
            for metric in (RESTARTS, RECONNECTS, CHECKPOINT_FAILURES, VERIFY_FAILURES, SAMPLES_DROPPED)
        }
        looked_at = set[str]()
        for text in all_under(read_yaml(RULES), "expr"):
            for name, span in re.findall(r"(?:increase|delta)\((\w+)\[(\w+)\]\)", text):
                looked_at.add(name)
                began = re.search(rf"{name}\b\)? > 0\s+unless\s.*{name} offset {span}", text, re.DOTALL)
                assert began or name in from_zero, text
        assert looked_at > from_zero

    def test_comparisons_that_are_no_longer_made_are_alerted_on(self) -> None:
        """Who compares by schedule would else take silence for tables that are equal."""
        age = re.compile(rf"time\(\) - max by \(job\) \({VERIFY_TIMESTAMP.name}\) > (\d+) \* 86400")
        limits = [
            int(found[1]) for text in all_under(read_yaml(RULES), "expr") if (found := age.search(text))
        ]
        assert limits == [2], "one may be missed of those that are made each day"

    def test_the_dashboard_shows_every_metric_and_no_other(self) -> None:
        dashboard = json.loads(DASHBOARD.read_text())
        shown = {name for text in all_under(dashboard, "expr") for name in _METRIC.findall(text)}
        assert shown == {metric.name for metric in METRICS}
        identifiers = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(identifiers)) == len(identifiers)

    def test_counters_are_shown_as_rates(self) -> None:
        dashboard = json.loads(DASHBOARD.read_text())
        for text in [*all_under(dashboard, "expr"), *all_under(read_yaml(RULES), "expr")]:
            for name in _METRIC.findall(text):
                if BY_NAME[name].kind == "counter":
                    assert re.search(rf"(rate|increase)\({name}\b", text), text


class TestContainer:
    def test_it_runs_as_nobody_in_particular_and_says_how_it_is(self) -> None:
        stages = (DEPLOY / "container" / "Containerfile").read_text().split("\nFROM ")
        last = stages[-1]
        assert len(stages) == 3
        assert f"\nUSER {USER}:{USER}\n" in last
        assert "\nHEALTHCHECK " in last
        assert "/health/live" in last
        # What comes after USER is not done by root.
        assert re.findall(r"^RUN (.*)$", last.partition("\nUSER")[2], re.MULTILINE) == ["penstock prepare"]

    def test_it_has_every_source_and_every_lane(self) -> None:
        extras = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
        installed = re.search(r'"\.\[([a-z0-9,]+)\]"', (DEPLOY / "container" / "Containerfile").read_text())
        assert installed is not None
        # Java is the image's own; the others are for trying it, for developing it and for measuring others.
        assert set(installed[1].split(",")) == set(extras) - {"java", "demo", "node", "dev", "peers"}

    def test_hadolint_finds_nothing(self) -> None:
        lint("hadolint", "--no-color", DEPLOY / "container" / "Containerfile")

    def test_hadolint_would_find_a_base_without_a_version(self, tmp_path: Path) -> None:
        text = (DEPLOY / "container" / "Containerfile").read_text()
        changed = tmp_path / "Containerfile"
        changed.write_text(re.sub(r"^FROM (\w+):\S+", r"FROM \1", text, flags=re.MULTILINE))
        with pytest.raises(AssertionError, match="DL3006"):
            lint("hadolint", "--no-color", changed)

    def test_every_base_has_a_version_and_what_is_copied_is_there(self) -> None:
        text = (DEPLOY / "container" / "Containerfile").read_text()
        for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
            assert re.search(r":\d", base), base
        root = DEPLOY.parent
        ignored = (root / ".dockerignore").read_text().splitlines()
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
            for name in line.split():
                assert (root / name).exists()
                assert f"!{name}" in ignored

    def test_compose_pins_its_images_hides_its_passwords_and_listens_only_here(self) -> None:
        compose = read_yaml(DEPLOY / "compose" / "compose.yaml")
        for name, service in compose["services"].items():
            assert "build" in service or re.search(r":v?\d", service["image"]), name
            assert "healthcheck" in service or name == "penstock"  # its image has one
            assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
            for volume in service["volumes"]:
                source = volume.split(":")[0]
                here = (DEPLOY / "compose" / source).exists()
                assert here if source.startswith(".") else source in compose["volumes"], volume
        penstock = compose["services"]["penstock"]
        assert penstock["user"] == f"{USER}:{USER}"
        assert penstock["cap_drop"] == ["ALL"]
        for path in ("prometheus.yaml", "grafana/datasource.yaml", "grafana/dashboards.yaml"):
            assert read_yaml(DEPLOY / "compose" / path)

    def test_compose_is_what_its_specification_says(self) -> None:
        schema = ("--builtin-schema", "vendor.compose-spec")
        lint("check-jsonschema", *schema, DEPLOY / "compose" / "compose.yaml")

    def test_compose_with_a_key_that_no_specification_knows_is_found(self, tmp_path: Path) -> None:
        compose = read_yaml(DEPLOY / "compose" / "compose.yaml")
        compose["services"]["penstock"]["cap_dorp"] = compose["services"]["penstock"].pop("cap_drop")
        changed = tmp_path / "compose.yaml"
        changed.write_text(yaml.safe_dump(compose))
        with pytest.raises(AssertionError, match="cap_dorp"):
            lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", changed)

    def test_compose_can_start_what_it_hardens(self) -> None:
        compose = read_yaml(DEPLOY / "compose" / "compose.yaml")
        copied = {name for name, secret in compose["secrets"].items() if "environment" in secret}
        for name, service in compose["services"].items():
            assert not (service.get("read_only") and copied & {*service.get("secrets", ())}), name
            # Docker mounts a tmpfs noexec, and the JVM loads native libraries from /tmp.
            assert all("exec" in re.split("[:,]", place)[1:] for place in service.get("tmpfs", ())), name

    def test_the_pipeline_of_compose_is_one(self, tmp_path: Path) -> None:
        config = load_pipeline((DEPLOY / "compose" / "penstock.yaml").read_text(), tmp_path)
        assert config.run.listen == "0.0.0.0:9780"
        assert config.lanes.shapes is not None
        ports = read_yaml(DEPLOY / "compose" / "compose.yaml")["services"]["penstock"]["ports"]
        assert f"127.0.0.1:3001:{config.lanes.shapes.port}" in ports
        assert not config.console.is_local, "nobody outside the container would reach it"
        port = config.console.listen.rpartition(":")[2]
        assert f"127.0.0.1:{port}:{port}" in ports
        assert [(each.role, each.password is not None) for each in config.console.access] == [("act", True)]
        stop = read_yaml(DEPLOY / "compose" / "compose.yaml")["services"]["penstock"]["stop_grace_period"]
        assert int(stop.removesuffix("s")) > config.run.stop_timeout.total_seconds()


class TestSystemd:
    def test_it_has_no_rights_and_gives_time_to_stop(self) -> None:
        unit = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
        assert unit["User"] == "penstock"
        assert unit["NoNewPrivileges"] == "yes"
        assert unit["ProtectSystem"] == "strict"
        assert unit["CapabilityBoundingSet"] == ""
        assert unit["KillMode"] == "mixed"  # the others are stopped by the supervisor
        assert int(unit["TimeoutStopSec"]) > 60
        assert "MemoryDenyWriteExecute" not in unit

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
    def test_systemd_takes_it(self, tmp_path: Path) -> None:
        copy = tmp_path / "penstock@shop.service"
        copy.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", "/bin/true"))
        verified = subprocess.run(
            ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
        )
        complaints = [line for line in verified.stderr.splitlines() if copy.name in line]
        assert complaints == []


class TestChart:
    templates = sorted(CHART.glob("templates/*"))

    def test_every_value_that_is_asked_for_is_there(self) -> None:
        values = read_yaml(CHART / "values.yaml")
        asked: set[str] = set()
        for template in self.templates:
            for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text()):
                found: Any = values
                for part in path.split("."):
                    assert part in found, f"{template.name}: {path}"
                    found = found[part]
                asked.add(path.split(".")[0])
        assert asked == set(values)

    @pytest.mark.parametrize("template", templates, ids=lambda path: path.name)
    def test_blocks_are_closed(self, template: Path) -> None:
        text = template.read_text()
        assert "{{" not in re.sub(r"\{\{[^{}]*\}\}|\{\{/\*.*?\*/\}\}", "", _without_texts(text))
        opened = re.findall(r"\{\{-?\s*(?:if|with|range|define)\b", text)
        assert len(opened) == len(re.findall(r"\{\{-?\s*end\b", text))

    def test_its_notes_say_how_to_reach_the_console(self) -> None:
        port = ConsoleConfig().listen.rpartition(":")[2]
        assert f"-0 {port}\n" in (CHART / "templates" / "NOTES.txt").read_text()

    def test_it_runs_as_nobody_in_particular(self) -> None:
        values = read_yaml(CHART / "values.yaml")
        assert values["podSecurityContext"]["runAsNonRoot"] is True
        assert str(values["podSecurityContext"]["runAsUser"]) == USER
        assert values["securityContext"]["allowPrivilegeEscalation"] is False
        assert values["securityContext"]["readOnlyRootFilesystem"] is True
        assert values["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert values["replicas"] == 2

    def test_what_the_image_has_prepared_is_not_hidden_by_a_volume(self) -> None:
        """It is copied from there into the volume that is mounted over it."""
        last = (DEPLOY / "container" / "Containerfile").read_text().rpartition("\nFROM ")[2]
        cache = re.search(r"XDG_CACHE_HOME=(\S+)", last)
        assert cache is not None
        text = (CHART / "templates" / "statefulset.yaml").read_text()
        before, pod = text.split("      containers:\n")
        init = before.partition("      initContainers:\n")[2]
        copied = re.search(r"command: \[cp, -R, (\S+)/\., (\S+)\]", init)
        assert copied is not None
        assert copied[1] == cache[1]
        [volume] = re.findall(r"\{name: (\w+), mountPath: " + copied[2], init)
        assert f"{{name: {volume}, mountPath: {cache[1]}}}" in pod
        assert f"{{name: {volume}, emptyDir: {{}}}}" in pod

    def test_the_version_is_that_of_the_package(self) -> None:
        from penstock import __version__

        assert read_yaml(CHART / "Chart.yaml")["appVersion"] == __version__

    @pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
    def test_helm_finds_nothing(self) -> None:
        lint("helm", "lint", "--strict", CHART)

    @pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
    @pytest.mark.parametrize("destination", ["parquet", "iceberg"])
    def test_helm_renders_it_with_a_pipeline_that_is_one(self, tmp_path: Path, destination: str) -> None:
        options = [
            f"pipeline.destination.type={destination}",
            "podMonitor.enabled=true",
            "podMonitor.labels.release=prometheus",
            "shapes.enabled=true",
        ]
        command = [
            "helm",
            "template",
            "shop",
            str(CHART),
            "--kube-version",
            "1.31.0",
            "--set",
            ",".join(options),
        ]
        rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        everything = list(yaml.safe_load_all(rendered))
        resources = {each["kind"]: each for each in everything}
        config = load_pipeline(resources["ConfigMap"]["data"]["penstock.yaml"], tmp_path)
        assert config.destination.type == destination
        pod = resources["StatefulSet"]["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > config.run.stop_timeout.total_seconds()
        container = pod["containers"][0]
        assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
            "/health/live",
            "/health/ready",
        }
        assert {each["name"] for each in container["volumeMounts"]} == {
            *(each["name"] for each in pod["volumes"]),
            "state",
        }
        assert resources["PodMonitor"]["metadata"]["labels"]["release"] == "prometheus"
        served = [each for each in everything if each["kind"] == "Service" and "shapes" in str(each["spec"])]
        assert config.lanes.shapes is not None
        assert [each["spec"]["ports"][0]["port"] for each in served] == [config.lanes.shapes.port]
        assert config.lanes.shapes.secret is not None
        assert {each["name"]: each["containerPort"] for each in container["ports"]}["shapes"] == 3000
