"""Settings of the live lane: from the pipeline file, from Electric's variables, to the process and back."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.from_config import spec_of
from penstock.capture.spec import ServiceSpec
from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.shapes.environment import ALIASES
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.standalone import Standalone, standalone
from penstock.supervisor.programs import programs_of, shape_programs

URL = "postgresql://app:hidden-password@db/shop"
GUARDED = {"DATABASE_URL": URL, "ELECTRIC_SECRET": "hidden-secret"}
SERVICE = ServiceSpec("grpc+unix:///tmp/capture")
PIPELINE = f"""
source: {{type: postgres, url: "{URL}", slot: shop, publication: shop_changes}}
destination: {{type: parquet, path: ./lake}}
state: ./state
streams: [public.orders]
"""


def pipeline(directory: Path, lanes: str) -> Config:
    path = directory / "penstock.yaml"
    path.write_text(PIPELINE + lanes)
    return Config.load(path, {})


def served(environment: dict[str, str], **options: Any) -> Standalone:
    return standalone(GUARDED | environment, options)


class TestVariables:
    def test_each_is_read_as_electric_writes_it(self) -> None:
        settings = served(
            {
                "ELECTRIC_PORT": "4000",
                "ELECTRIC_ENABLE_INTEGRATION_TESTING": "true",
                "ELECTRIC_SHAPE_CHUNK_BYTES_THRESHOLD": "10000",
                "ELECTRIC_CACHE_MAX_AGE": "1",
                "ELECTRIC_CACHE_STALE_AGE": "3",
                "ELECTRIC_LONG_POLL_TIMEOUT": "4000",
                "ELECTRIC_TCP_SEND_TIMEOUT": "2min",
                "ELECTRIC_MAX_CONCURRENT_REQUESTS": '{"initial": 5, "existing": 7}',
                "ELECTRIC_POOLED_DATABASE_URL": "postgresql://pool/shop",
                "ELECTRIC_DB_POOL_SIZE": "8",
                "ELECTRIC_EXPERIMENTAL_MAX_SHAPES": "9",
            }
        ).settings
        assert settings.port == 4000
        assert settings.allow_shape_deletion
        assert settings.chunk_bytes_threshold == 10000
        assert (settings.cache_max_age, settings.cache_stale_age) == (
            timedelta(seconds=1),
            timedelta(seconds=3),
        )
        assert settings.long_poll_timeout == timedelta(seconds=4)
        assert settings.send_timeout == timedelta(minutes=2)
        assert (settings.max_concurrent_requests.initial, settings.max_concurrent_requests.existing) == (5, 7)
        assert (settings.source_url, settings.query_url) == (URL, "postgresql://pool/shop")
        assert (settings.db_pool_size, settings.max_shapes) == (8, 9)

    @pytest.mark.parametrize(
        ("variable", "text", "setting", "value"),
        [
            ("ELECTRIC_LISTEN_ON_IPV6", "true", "host", "::"),
            ("ELECTRIC_LISTEN_ON_IPV6", "false", "host", "0.0.0.0"),
            ("ELECTRIC_QUERY_DATABASE_URL", "postgresql://pool/shop", "query_url", "postgresql://pool/shop"),
            ("ELECTRIC_MAX_SHAPES", "7", "max_shapes", 7),
            ("ELECTRIC_TWEAKS_SCHEMA_RECONCILER_PERIOD", "1min", "schema_check_every", timedelta(minutes=1)),
            ("ELECTRIC_SUBQUERY_BUFFER_MAX_TRANSACTIONS", "5", "subquery_buffer_max_transactions", 5),
            ("ELECTRIC_ENABLE_INTEGRATION_TESTING", "false", "allow_shape_deletion", False),
            ("ELECTRIC_DATABASE_CA_CERTIFICATE_FILE", "/c a", "source_url", f"{URL}?sslrootcert=%2Fc%20a"),
        ],
    )
    def test_every_one_reaches_its_setting(
        self, variable: str, text: str, setting: str, value: object
    ) -> None:
        assert getattr(served({variable: text}).settings, setting) == value

    def test_the_command_line_comes_before_the_environment(self, tmp_path: Path) -> None:
        found = served({"ELECTRIC_PORT": "4000", "ELECTRIC_STORAGE_DIR": "/x"}, port=0, storage_dir=tmp_path)
        assert found.settings.port == 0
        assert found.state == tmp_path
        assert found.settings.directory == tmp_path / "shapes"

    def test_a_pipelines_state_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "state.json").touch()
        with pytest.raises(ConfigError, match="state directory of a pipeline"):
            served({}, storage_dir=tmp_path)

    def test_a_value_that_cannot_be_read_is_named_with_its_variable(self) -> None:
        for variable, text in {
            "ELECTRIC_PORT": "many",
            "ELECTRIC_CACHE_MAX_AGE": "5 apples",
            "ELECTRIC_LONG_POLL_TIMEOUT": "soon",
            "ELECTRIC_MAX_CONCURRENT_REQUESTS": "many",
            "ELECTRIC_REPLICATION_STREAM_ID": "no-dashes",
            "ELECTRIC_PROMETHEUS_PORT": "-1",
        }.items():
            with pytest.raises(ConfigError, match=variable):
                served({variable: text})
        with pytest.raises(ConfigError) as wrong:
            served({"ELECTRIC_PORT": "70000"})
        assert "ELECTRIC_PORT: should be less than" in wrong.value.detail

    def test_variables_without_a_meaning_here_are_told(self) -> None:
        found = served(
            {"ELECTRIC_USAGE_REPORTING": "false", "ELECTRIC_PROMETHEUS_PORT": "9090", "OTHER": "1"}
        )
        assert found.unknown == ("ELECTRIC_USAGE_REPORTING",)
        assert found.listen == "0.0.0.0:9090"

    def test_instances_with_another_stream_id_have_a_slot_and_a_publication_of_their_own(self) -> None:
        assert served({}).settings.slot == "penstock_slot_default"
        other = served({"ELECTRIC_REPLICATION_STREAM_ID": "Canary", "ELECTRIC_MANUAL_TABLE_PUBLISHING": "1"})
        assert other.settings.slot == "penstock_slot_canary"
        assert other.settings.publication == "penstock_publication_canary"
        assert other.settings.publication_mode == "manual"

    def test_a_storage_directory_below_nobodys_home_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="a user that is not known here"):
            served({"ELECTRIC_STORAGE_DIR": "~no-such-user/shapes"})

    @given(st.dictionaries(st.sampled_from(sorted(ALIASES)), st.text(max_size=20)))
    def test_whatever_they_hold_is_understood_or_refused(self, environment: dict[str, str]) -> None:
        with suppress(ConfigError):
            standalone(GUARDED | environment, {})


class TestSecrets:
    def test_shapes_are_never_served_unguarded_by_accident(self) -> None:
        with pytest.raises(ConfigError, match="none is set") as refused:
            standalone({"DATABASE_URL": URL}, {})
        assert "ELECTRIC_INSECURE=true" in refused.value.remedy
        with pytest.raises(ConfigError, match="and yet"):
            served({"ELECTRIC_INSECURE": "true"})
        assert standalone({"DATABASE_URL": URL, "ELECTRIC_INSECURE": "true"}, {}).settings.insecure

    def test_they_reach_the_process_and_nobody_else(self) -> None:
        found = served({"ELECTRIC_LONG_POLL_TIMEOUT": "1500"})
        programs = shape_programs(found, SERVICE, Path("/tmp/admin"))
        for hidden in ("hidden-password", "hidden-secret"):
            assert hidden not in repr(found)
            assert hidden not in repr(programs)
            assert all(hidden not in " ".join(program.command) for program in programs)
        (shapes,) = [program for program in programs if program.name == "shapes"]
        arrived = ShapeSettings.from_json(json.loads(json.dumps(shapes.spec))["settings"])
        assert arrived == found.settings
        assert arrived.secret_text == "hidden-secret"


class TestPipelineFile:
    def test_a_pipeline_without_the_lane_has_none(self, tmp_path: Path) -> None:
        config = pipeline(tmp_path, "")
        names = [each.name for each in programs_of(config, tmp_path / "penstock.yaml", SERVICE, tmp_path)]
        assert names == ["capture", "lake", "console"]
        assert spec_of(config, service=SERVICE).lanes == {"lake": None}

    def test_the_lane_runs_beside_the_lake_and_the_source_waits_for_both(self, tmp_path: Path) -> None:
        config = pipeline(tmp_path, "lanes: {shapes: {port: 3001, secret: s, expire_after: never}}\n")
        names = [each.name for each in programs_of(config, tmp_path / "penstock.yaml", SERVICE, tmp_path)]
        assert names == ["capture", "lake", "shapes", "console"]
        assert spec_of(config, service=SERVICE).lanes == {"lake": None, "shapes": None}
        assert spec_of(config).lanes == {"lake": None}
        settings = ShapeSettings.of_pipeline(config, {"ELECTRIC_PORT": "1", "ELECTRIC_MAX_SHAPES": "5"})
        assert (settings.port, settings.max_shapes) == (3001, 5)  # the file's word first
        assert settings.expire_after is None
        assert (settings.slot, settings.publication) == ("shop", "shop_changes")
        assert settings.directory == tmp_path / "state" / "shapes"
        assert ShapeSettings.from_json(settings.to_json()) == settings

    def test_a_lane_that_is_named_is_wanted_even_if_nothing_is_said_of_it(self, tmp_path: Path) -> None:
        config = pipeline(tmp_path, "lanes:\n  shapes:\n")
        assert config.lanes.shapes is not None
        with pytest.raises(ConfigError, match="none is set"):
            ShapeSettings.of_pipeline(config, {})
