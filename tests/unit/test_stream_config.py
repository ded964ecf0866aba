"""`lanes.kafka`, `lanes.kinesis`, `lanes.file`: what they mean, what is refused, and that no secret shows."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from penstock.capture.from_config import spec_of
from penstock.capture.spec import ServiceSpec
from penstock.config import Config
from penstock.config.streams import KafkaLaneConfig
from penstock.core.errors import ConfigError
from penstock.core.stream import MESSAGES, StreamId
from penstock.streams.kafka.settings import client_settings
from penstock.streams.record_publisher import RecordPublisher
from penstock.streams.settings import StreamSettings
from penstock.streams.targets import publisher_of
from penstock.supervisor.programs import programs_of

PIPELINE = """\
source: {type: postgres, url: "postgresql://app@db/shop", slot: shop}
destination: {type: parquet, path: ./lake}
state: ./state
streams: [public.orders, public.customers]
"""
SERVICE = ServiceSpec("grpc+unix:///tmp/capture")


def load(directory: Path, lanes: str, **environment: str) -> Config:
    path = directory / "penstock.yaml"
    path.write_text(PIPELINE + lanes)
    return Config.load(path, environment)


def test_the_short_forms_of_the_lanes_are_whole(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "lanes:\n"
        '  kafka: {bootstrap: "localhost:9092", topic: "shop.{schema}.{table}"}\n'
        "  kinesis: {stream: shop, region: eu-west-1}\n"
        "  file: {path: ./changes.ndjson}\n",
    )
    assert list(config.lanes.streams) == ["kafka", "kinesis", "file"]
    settings = StreamSettings.of_pipeline(config, "kafka")
    assert (settings.identity, settings.prefix) == ("shop", "shop")
    assert settings.routes.topic == "shop.{schema}.{table}"
    assert settings.directory == tmp_path / "state" / "streams" / "kafka"
    assert config.lanes.file is not None
    assert config.lanes.file.path == tmp_path / "changes.ndjson"


@pytest.mark.parametrize(("told", "linger_s"), [("", 0.0), (", linger: 250ms", 0.25)])
def test_events_for_kinesis_wait_for_others_as_long_as_they_are_told_to(
    tmp_path: Path, told: str, linger_s: float
) -> None:
    config = load(tmp_path, f"lanes: {{kinesis: {{stream: shop, region: eu-west-1{told}}}}}\n")
    with ExitStack() as opened:
        publisher = publisher_of(StreamSettings.of_pipeline(config, "kinesis"), opened)
        assert isinstance(publisher, RecordPublisher)
        assert publisher._linger_s == linger_s


def test_capture_waits_for_stream_lanes_and_never_begins_anew_without_asking_them(tmp_path: Path) -> None:
    config = load(tmp_path, "lanes: {file: {path: ./out}, shapes: {secret: s}}\n")
    spec = spec_of(config, service=SERVICE)
    assert spec.lanes == {"lake": None, "shapes": None, "file": None}
    assert spec.renewable == {"shapes"}
    assert spec_of(config).lanes == {"lake": None}, "a bounded sync is the lake's alone"


def test_each_lane_is_a_process_that_reads_the_pipeline_file_itself(tmp_path: Path) -> None:
    for execution, module in (("inline", "penstock.streams"), ("spark", "penstock.streams_process")):
        text = f'lanes: {{kafka: {{bootstrap: "b:1", execution: {execution}, mask_salt: "${{SALT}}"}}}}\n'
        config = load(tmp_path, text, SALT="hunter2")
        *_, lane, _console = programs_of(config, tmp_path / "penstock.yaml", SERVICE, tmp_path / "admin")
        assert (lane.name, lane.command[-1]) == ("kafka", module)
        assert "hunter2" not in str(lane.spec)


@pytest.mark.parametrize(("cores", "module"), [(4, "penstock.streams"), (5, "penstock.streams_process")])
def test_events_are_made_by_spark_where_there_are_cores_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, module: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    config = load(tmp_path, 'lanes: {kafka: {bootstrap: "b:1"}}\n')
    *_, lane, _console = programs_of(config, tmp_path / "penstock.yaml", SERVICE, tmp_path / "admin")
    assert lane.command[-1] == module


def test_no_credential_shows_in_what_is_printed_or_said(tmp_path: Path) -> None:
    text = (
        'lanes: {kafka: {bootstrap: "b:1", mask_salt: "${SALT}", security: {protocol: sasl_ssl, '
        'mechanism: PLAIN, username: u, password: "${SECRET}"}, '
        'schema_registry: {url: "http://r", password: "${SECRET}"}, '
        'properties: {ssl.key.pem: "${SECRET}", socket.timeout.ms: 9000}}}\n'
    )
    config = load(tmp_path, text, SECRET="hunter2", SALT="grain")
    settings = StreamSettings.of_pipeline(config, "kafka")
    for printed in (repr(config), str(config), config.model_dump_json(), repr(settings)):
        assert "hunter2" not in printed
    assert "grain" not in repr(config)
    lane = config.lanes.kafka
    assert lane is not None
    assert lane.security.password is not None
    assert lane.security.password.get_secret_value() == "hunter2"
    assert client_settings(lane)["ssl.key.pem"] == "hunter2"
    assert client_settings(lane)["socket.timeout.ms"] == "9000"
    assert settings.encoding.mask_salt == "grain"


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        ("kafka: {}", "lanes.kafka.bootstrap: is missing"),
        ("kafka:", "lanes.kafka.bootstrap: is missing"),
        ("kinesis: {}", "lanes.kinesis.stream: is missing"),
        ("file: {}", "lanes.file.path: is missing"),
        ('kafka: {bootstrap: "b:1", topics: x}', "did you mean `topic`?"),
        ('kafka: {bootstrap: "b:1", topic: "{database}"}', "{prefix}, {schema} and {table}"),
        ('kafka: {bootstrap: "b:1", topic: "{table"}', "no other braces"),
        ('kafka: {bootstrap: "b:1", format: avro}', "needs `schema_registry`"),
        ('kafka: {bootstrap: "b:1", properties: {acks: 0}}', "`acks` is no property to choose"),
        ('kafka: {bootstrap: "b:1", security: {protocol: sasl_ssl}}', "needs `mechanism`"),
        ('kafka: {bootstrap: "b:1", security: {mechanism: PLAIN}}', "needs `username` and `password`"),
        ('kafka: {bootstrap: "b:1", security: {certificate: ./c.pem}}', "go together"),
        ('kafka: {bootstrap: "b:1", security: {mechanism: GSSAPI}}', "use `SCRAM-SHA-512`, or `OAUTHBEARER`"),
        ('kafka: {bootstrap: "b:1", security: {mechanism: OAUTHBEARER}}', "needs `security.oauth`"),
        (
            'kafka: {bootstrap: "b:1", properties: {sasl.oauthbearer.client.secret: x}}',
            "`sasl.oauthbearer.client.secret` is no property",
        ),
        ('kafka: {bootstrap: "b:1", identity: "a b"}', "should have 1 to 100"),
        ('kafka: {bootstrap: "b:1", mask: {email: redact}}', "is not schema.table.column"),
        ("kinesis: {stream: s, format: avro}", "lanes.kinesis.format"),
        ("kinesis: {stream: s, transactions: t}", "no meaning for Kinesis"),
        ("file: {path: ./f, dead_letter: {max_share: 0}}", "greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path: Path, lane: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"lanes:\n  {lane}\n")
    assert said in caught.value.detail


def test_a_property_that_would_break_the_promise_is_refused() -> None:
    for name in ("enable.idempotence", "transactional.id", "max.in.flight", "isolation.level"):
        with pytest.raises(ValueError, match="no property to choose"):
            KafkaLaneConfig(bootstrap="b:1", properties={name: SecretStr("x")})
    assert KafkaLaneConfig(bootstrap="b:1", properties={"socket.timeout.ms": SecretStr("9")}).properties


def test_a_lane_may_have_some_of_the_streams_and_masks_of_each(tmp_path: Path) -> None:
    text = (
        "lanes: {file: {path: ./f, streams: ['public.cust*'], mask: {public.customers.email: sha256, "
        "public.orders.note: redact}}}\n"
    )
    settings = StreamSettings.of_pipeline(load(tmp_path, text), "file")
    orders, customers = StreamId("public", "orders"), StreamId("public", "customers")
    assert (settings.wants(orders), settings.wants(customers)) == (False, True)
    assert settings.masks(customers) == (("email", "sha256"),)


def test_keys_have_another_form_by_another_format_or_another_hash_of_a_column(tmp_path: Path) -> None:
    def form(section: str, stream: str = "public.customers") -> str:
        settings = StreamSettings.of_pipeline(
            load(tmp_path, f"lanes: {{file: {{path: ./f{section}}}}}\n"), "file"
        )
        return settings.key_form(stream)

    hashed = ", mask: {public.customers.email: sha256}"
    forms = [form(""), form(", format: debezium"), form(hashed), form(f"{hashed}, mask_salt: x")]
    assert len(set(forms)) == 4
    assert form(", mask: {public.customers.email: redact}") == form("")
    assert form(f"{hashed}, mask_salt: x", "public.orders") == form("", "public.orders")
    assert form(", format: debezium", str(MESSAGES)) == form("", str(MESSAGES))
