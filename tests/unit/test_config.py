"""What the pipeline file promises: what it means, and what is said when it is wrong."""

from __future__ import annotations

import re
import string
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from penstock.config import Config, MongoSourceConfig, MysqlSourceConfig, PostgresSourceConfig, StreamConfig
from penstock.config.base import Section
from penstock.config.problems import Problem, problems_of
from penstock.config.selection import choose
from penstock.config.substitution import SubstitutionError, substitute
from penstock.config.values import revealed
from penstock.core.errors import ConfigError
from penstock.core.stream import StreamId
from penstock.lake.destination import catalog_properties, iceberg_settings, spark_conf
from penstock.sources.open import open_source

MINIMAL = """\
source: {type: postgres, url: "postgresql://app@db/shop"}
destination: {type: parquet, path: ./lake}
state: ./state
streams:
  - public.orders
"""
SECRET = "hunter2-in-the-clear"


def load(directory: Path, text: str, **environment: str) -> Config:
    path = directory / "penstock.yaml"
    path.write_text(text, encoding="utf-8")
    return Config.load(path, environment)


def refused(directory: Path, text: str, **environment: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(directory, text, **environment)
    assert caught.value.remedy
    return caught.value


def ids(*texts: str) -> list[StreamId]:
    return [StreamId.parse(text) for text in texts]


class TestWhatAFileMeans:
    def test_the_smallest_file_has_the_documented_defaults(self, tmp_path: Path) -> None:
        config = load(tmp_path, MINIMAL)
        assert isinstance(config.source, PostgresSourceConfig)
        assert (config.source.slot, config.source.publication) == ("penstock", "penstock")
        assert config.streams == [StreamConfig(table="public.orders", mode="cdc", write="upsert")]
        assert config.spark.master == "local[*]"
        assert (config.log.retention, config.readers.grace) == (timedelta(days=7), timedelta(hours=1))
        assert (config.loading.method, config.loading.parallel) == ("ctid", None)

    def test_relative_paths_count_from_the_files_directory(self, tmp_path: Path) -> None:
        config = load(tmp_path, MINIMAL)
        assert config.destination.path == tmp_path.resolve() / "lake"
        assert config.state == tmp_path.resolve() / "state"

    def test_every_section_is_read(self, tmp_path: Path) -> None:
        config = load(
            tmp_path,
            MINIMAL
            + """\
  - {table: public.events, write: append, replica_identity: full, rename: {_op: op}}
exclude: ["public.tmp_*"]
spark: {master: "local[2]", conf: {spark.ui.enabled: false, spark.sql.shuffle.partitions: 8}}
log: {retention: 36h, step_bytes_max: 16MiB}
readers: {grace: 90s}
load: {method: key, rows_per_chunk: 1000, parallel: 3}
lanes: {}
""",
        )
        assert config.streams[1].rename == {"_op": "op"}
        assert revealed(config.spark.conf) == {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "8",
        }
        assert config.log.step_bytes_max == 16 * 1024 * 1024
        assert config.log.retention == timedelta(hours=36)
        assert config.loading.rows_per_chunk == 1000

    def test_a_section_with_all_lines_commented_out_has_its_defaults(self, tmp_path: Path) -> None:
        assert load(tmp_path, MINIMAL + "spark:\nlanes:\n").spark.master == "local[*]"

    def test_a_url_never_shows_in_repr(self, tmp_path: Path) -> None:
        config = load(tmp_path, MINIMAL.replace("app@", f"app:{SECRET}@"))
        assert SECRET in config.source.url.get_secret_value()
        assert SECRET not in f"{config!r} {config} {config.source!r} {config.model_dump_json()}"

    def test_credentials_among_settings_of_other_programs_show_nowhere(self, tmp_path: Path) -> None:
        catalog = f"{{type: rest, uri: 'http://r', properties: {{token: {SECRET}}}}}"
        iceberg = f"{{type: iceberg, warehouse: ./lake, catalog: {catalog}}}"
        text = MINIMAL.replace("{type: parquet, path: ./lake}", iceberg)
        config = load(tmp_path, text + f"spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: {SECRET}}}}}\n")
        printed = f"{config!r} {config} {config.model_dump_json()} {iceberg_settings(config.destination)!r}"
        assert SECRET not in printed
        assert catalog_properties(config.destination)["token"] == SECRET
        assert spark_conf(config)["spark.hadoop.fs.s3a.secret.key"] == SECRET


class TestWhatIsSaidWhenAFileIsWrong:
    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no pipeline file"):
            Config.load(tmp_path / "absent.yaml")

    @pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
    def test_a_file_without_keys_is_refused(self, tmp_path: Path, text: str) -> None:
        assert "not a mapping" in refused(tmp_path, text).message

    def test_unreadable_yaml_gives_line_and_column_and_quotes_nothing(self, tmp_path: Path) -> None:
        error = refused(tmp_path, f'source: {{url: "{SECRET}", ]\n')
        assert re.search(r"line 1, column \d+", error.message)
        assert SECRET not in str(error)
        assert error.__cause__ is None

    def test_a_key_given_twice_is_refused(self, tmp_path: Path) -> None:
        assert "`state` is there twice" in refused(tmp_path, MINIMAL + "state: ./other\n").message

    @pytest.mark.parametrize(
        ("wrong", "line", "said"),
        [
            ("stremas: []", 6, "stremas: unknown key `stremas`; did you mean `streams`?"),
            ("spark: {mastr: local}", 6, "spark.mastr: unknown key `mastr`; did you mean `master`?"),
            ("load: {paralel: 2}", 6, "load.paralel: unknown key `paralel`; did you mean `parallel`?"),
            ("  - {tabel: public.x}", 6, "streams[1].tabel: unknown key `tabel`; did you mean `table`?"),
            ("qqq: 1", 6, "qqq: unknown key `qqq`; known here are checkpoint, console, destination,"),
        ],
    )
    def test_an_unknown_key_is_named_with_its_place_and_the_nearest_known_one(
        self, tmp_path: Path, wrong: str, line: int, said: str
    ) -> None:
        error = refused(tmp_path, MINIMAL + wrong + "\n")
        assert f"line {line}: " in error.detail
        assert said in error.detail

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ("run: {parked_retry: 0s}", "run.parked_retry: should be between 1s and 365d, or never"),
            ("load: {parallel: many}", "load.parallel: should be a valid integer"),
            ("load: {parallel: 0}", "load.parallel: should be greater than 0"),
            ("load: 5", "load: should be a mapping"),
            ("log: {retention: 7}", "log.retention: should be a duration with a unit"),
            ("log: {retention: 999999999999w}", "log.retention: is longer than"),
            ("log: {step_bytes_max: 5}", "log.step_bytes_max: should be greater than"),
            ("exclude: [orders]", "exclude[0]: is not a stream id"),
            ("checkpoint: {path: ftp://host/a}", "checkpoint.path: should be a path, s3://"),
            ("checkpoint: {path: s3://bucket}", "checkpoint.path: should be a path, s3://"),
            ("checkpoint: {path: s3://key:secret@bucket/a}", "credentials are taken from the environment"),
            ("log: {seal_every: 0s}", "log.seal_every: should be 100ms at least"),
            ("checkpoint: {interval: 0s}", "checkpoint.interval: should be 100ms at least"),
            ("lanes: {lake: {every: 0s}}", "lanes.lake.every: should be 100ms at least"),
            ("lanes: {lake: {refresh_every: 0s}}", "lanes.lake.refresh_every: should be 100ms at least"),
            ("run: {heartbeat: 99ms}", "run.heartbeat: should be 100ms at least"),
            ('run: {listen: "here:65536"}', "run.listen: should be host:port with a port up to 65535"),
            ("run: {listen: here}", "run.listen: should be host:port with a port up to 65535"),
            ('tail: {listen: "here:0"}', "tail.listen: should be `unix`, or host:port with a port from 1"),
            ('tail: {listen: "here:99999"}', "tail.listen: should be `unix`, or host:port"),
            ("  - {table: public.x, write: merge}", "streams[1].write: should be 'upsert' or 'append'"),
            ("  - {write: append}", "streams[1].table: is missing"),
            ("  - [public.x]", "streams[1]: should be a mapping"),
            ("  - {table: public.x, rename: {a: c, b: c}}", "streams[1].rename: gives the same new name"),
            ("  - public.orders", "streams[1]: public.orders is listed twice"),
            ("exclude: [public.orders]", "streams[0]: public.orders is also in `exclude`"),
        ],
    )
    def test_a_wrong_value_is_named_with_its_place(self, tmp_path: Path, wrong: str, said: str) -> None:
        assert said in refused(tmp_path, MINIMAL + wrong + "\n").detail

    @pytest.mark.parametrize("token", ["", " ", f"{SECRET} ", f"{SECRET}é", f"{SECRET}\\n", f"{SECRET}\\x7f"])
    def test_a_token_that_no_header_can_carry_is_refused_without_quoting_it(
        self, tmp_path: Path, token: str
    ) -> None:
        error = refused(tmp_path, MINIMAL + f'tail: {{token: "{token}"}}\n')
        assert "tail.token: should be printable ASCII characters" in error.detail
        assert SECRET not in str(error)

    def test_the_least_that_is_allowed_is_allowed(self, tmp_path: Path) -> None:
        config = load(
            tmp_path,
            MINIMAL
            + 'run: {listen: "127.0.0.1:0", heartbeat: 100ms}\n'
            + 'tail: {listen: "here:1", certificate: a, key: b, token: "a token"}\n',
        )
        assert (config.run.listen, config.run.heartbeat) == ("127.0.0.1:0", timedelta(milliseconds=100))
        assert config.tail.listen == "here:1"

    def test_all_problems_are_told_at_once(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MINIMAL + "load: {parallel: x}\nsprak: {}\n")
        assert "2 problems" in error.message
        assert len(error.detail.splitlines()) == 2

    def test_a_wrong_url_is_refused_without_quoting_it(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MINIMAL.replace("postgresql://app@db", f"mysql://app:{SECRET}@db"))
        assert "source.url: should be a URL that begins with postgresql://" in error.detail
        assert SECRET not in str(error)
        assert error.__cause__ is None

    def test_an_object_store_is_not_taken_for_a_directory(self, tmp_path: Path) -> None:
        assert "not available yet" in refused(tmp_path, MINIMAL.replace("./lake", "s3://bucket/lake")).detail

    def test_state_inside_the_tables_directory_is_refused(self, tmp_path: Path) -> None:
        assert "lies inside" in refused(tmp_path, MINIMAL.replace("./state", "./lake/state")).detail


class TestAPartOfATable:
    def test_a_condition_that_cannot_be_read_is_refused_with_its_line_and_place(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MINIMAL + "  - {table: public.x, where: id = = 1}\n")
        assert re.search(r'streams\[1\]\.where: at character 6: syntax error at or near "="', error.detail)

    @pytest.mark.parametrize(
        "where", ["id = 1; DROP TABLE x", "id = 1 ORDER BY 1", "''", "true UNION SELECT 1"]
    )
    def test_a_condition_is_a_condition_and_nothing_more(self, tmp_path: Path, where: str) -> None:
        error = refused(tmp_path, MINIMAL + f'  - {{table: public.x, where: "{where.strip(chr(39))}"}}\n')
        assert "streams[1].where: at character" in error.detail

    def test_a_column_listed_twice_is_refused(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MINIMAL + "  - {table: public.x, columns: [id, id]}\n")
        assert "names a column twice" in error.detail


class TestCursors:
    @pytest.mark.parametrize(
        ("written", "names", "lookbacks"),
        [
            ("cursor: n", ("n",), None),
            ('cursor: "updated_at:id"', ("updated_at", "id"), None),
            ("cursor: n, lookback: 0", ("n",), (Decimal(0),)),
            ("cursor: n, lookback: 1.5", ("n",), (Decimal("1.5"),)),
            ("cursor: n, lookback: 15m", ("n",), (timedelta(minutes=15),)),
            ('cursor: "t:n", lookback: [1h, 500]', ("t", "n"), (timedelta(hours=1), Decimal(500))),
        ],
    )
    def test_a_cursor_and_its_lookback_are_read(
        self, tmp_path: Path, written: str, names: tuple[str, ...], lookbacks: tuple[object, ...] | None
    ) -> None:
        config = load(tmp_path, MINIMAL + f"  - {{table: public.x, mode: incremental, {written}}}\n")
        assert (config.streams[1].cursor, config.streams[1].lookback) == (names, lookbacks)

    @pytest.mark.parametrize(
        ("written", "said"),
        [
            ("mode: incremental", "needs a `cursor`"),
            ("cursor: n", "`cursor` is for `mode: incremental` alone"),
            ("lookback: 5m", "`lookback` is for `mode: incremental` alone"),
            ('mode: incremental, cursor: "a:b:c"', "should be a column, or two"),
            ('mode: incremental, cursor: "a:a"', "should be a column, or two"),
            ("mode: incremental, cursor: n, lookback: -5", "should be a duration with a unit"),
            ("mode: incremental, cursor: n, lookback: 5 parsecs", "should be a duration with a unit"),
            ("mode: incremental, cursor: n, lookback: [1, 2, 3]", "should be one value, or a list"),
            ("resume: per_chunk", "`per_chunk` is for `mode: full_refresh` alone"),
            ("resume: per_chunk, mode: incremental, cursor: n", "is for `mode: full_refresh` alone"),
            ("deletes: soft, write: append", "`soft` is for `write: upsert`"),
            ("deletes: soft, mode: full_refresh", "`full_refresh` does not see deletes"),
            ("deletes: soft, mode: incremental, cursor: n", "`incremental` does not see deletes"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, tmp_path: Path, written: str, said: str) -> None:
        assert said in refused(tmp_path, MINIMAL + f"  - {{table: public.x, {written}}}\n").detail


class TestWhatIsNotThereYetIsNeverIgnored:
    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (
                "  - {table: shop.x, replica_identity: full}\n",
                "streams[1].replica_identity: ",
            ),
            ("lanes: {shapes: {}}\n", "lanes.shapes: is not available yet for a source of type mysql"),
            (
                "lanes:\n  file: {path: ./x, messages: {prefixes: [a]}}\n",
                "lanes.file.messages: is for messages that applications emit at Postgres",
            ),
        ],
    )
    def test_what_another_source_has_is_refused_where_it_is_written(
        self, tmp_path: Path, more: str, said: str
    ) -> None:
        assert said in refused(tmp_path, MYSQL + more).detail


MONGODB = (
    MINIMAL.replace("type: postgres", "type: mongodb")
    .replace("postgresql://", "mongodb://")
    .replace("public.", "shop.")
)


class TestMongodb:
    @pytest.mark.parametrize(
        ("url", "more", "database"),
        [
            ("mongodb://a:1,b:2/shop?replicaSet=rs0", "", "shop"),
            ("mongodb://u:p%2F@a/my%20shop", "", "my shop"),
            ("mongodb+srv://cluster.example/", "", ""),
            ("mongodb://a", "", ""),
            ("mongodb://a/admin", ", database: shop", "shop"),
            ("mongodb://a/admin", ', database: ""', ""),
        ],
    )
    def test_streams_are_of_one_database_or_of_the_cluster(
        self, tmp_path: Path, url: str, more: str, database: str
    ) -> None:
        text = re.sub(r"url: [^,}]+", f'url: "{url}"{more}', MONGODB, count=1)
        config = load(tmp_path, text)
        assert isinstance(config.source, MongoSourceConfig)
        assert config.source.database_read == database
        source = open_source(config.source)
        assert (source.name, source.database) == ("penstock", database)
        assert config.source.fields_path == config.state / "collections.json"

    def test_a_url_of_another_kind_is_refused_without_quoting_it(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MONGODB.replace("mongodb://", "mysql://"))
        assert "source.url: should be a URL that begins with mongodb://" in error.detail
        assert "mysql" not in error.detail


MYSQL = (
    MINIMAL.replace("type: postgres", "type: mysql")
    .replace("postgresql://", "mysql://")
    .replace("public.", "shop.")
)


class TestMysql:
    def test_a_source_has_a_url_and_a_name_among_replicas(self, tmp_path: Path) -> None:
        source = load(tmp_path, MYSQL).source
        assert isinstance(source, MysqlSourceConfig)
        assert (source.name, source.server_id) == ("penstock", None)
        assert open_source(source).name == "penstock"

    def test_keys_of_another_kind_are_unknown(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MYSQL.replace("type: mysql,", "type: mysql, slot: s, server_id: 0,"))
        assert "source.slot: unknown key `slot`" in error.detail
        assert "source.server_id: should be greater than or equal to 1" in error.detail

    def test_a_url_of_another_kind_is_refused_without_quoting_it(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MYSQL.replace("mysql://app@db", f"postgresql://app:{SECRET}@db"))
        assert "source.url: should be a URL that begins with mysql:// or mariadb://" in error.detail
        assert SECRET not in str(error)


class TestDestination:
    def test_an_iceberg_destination_has_a_warehouse_and_a_catalog_in_it_by_default(
        self, tmp_path: Path
    ) -> None:
        config = load(tmp_path, MINIMAL.replace("parquet, path", "iceberg, warehouse"))
        assert config.destination.directory == tmp_path / "lake"
        assert config.destination.catalog.type == "sqlite"

    def test_what_one_kind_of_table_needs_is_asked_for_and_what_is_the_others_refused(
        self, tmp_path: Path
    ) -> None:
        needs = refused(tmp_path, MINIMAL.replace("parquet, path", "iceberg, path"))
        assert "needs `warehouse`" in needs.detail
        foreign = refused(tmp_path, MINIMAL.replace("./lake", "./lake, upserts: copy_on_write"))
        assert "`upserts` has no meaning for parquet tables" in foreign.detail
        text = MINIMAL.replace("parquet, path: ./lake", "iceberg, warehouse: ./lake, catalog: {type: rest}")
        assert "a catalog of type rest needs `uri`" in refused(tmp_path, text).detail

    def test_a_format_version_that_is_not_written_is_refused(self, tmp_path: Path) -> None:
        text = MINIMAL.replace("parquet, path: ./lake", "iceberg, warehouse: ./lake, {V}")
        assert load(tmp_path, text.replace(", {V}", "")).destination.format_version is None
        for version in (2, 3):
            config = load(tmp_path, text.replace("{V}", f"format_version: {version}"))
            assert config.destination.format_version == version
        for wrong in ("1", "4"):
            detail = refused(tmp_path, text.replace("{V}", f"format_version: {wrong}")).detail
            assert "destination.format_version" in detail
        as_property = refused(tmp_path, text.replace("{V}", "properties: {format-version: 3}"))
        assert "set `format_version`" in as_property.detail


class TestSubstitution:
    def test_variables_defaults_and_files_are_filled_in(self, tmp_path: Path) -> None:
        (tmp_path / "slot.txt").write_text("shop_slot\n")
        text = MINIMAL.replace('shop"', 'shop", slot: "${file:slot.txt}", publication: "${PUB:-shop}"')
        config = load(tmp_path, text.replace("./lake", '"${LAKE}/x"'), LAKE="/data")
        assert isinstance(config.source, PostgresSourceConfig)
        assert config.source.slot == "shop_slot"
        assert config.source.publication == "shop"
        assert config.destination.path == Path("/data/x").resolve()

    def test_a_variable_that_is_not_set_is_named_with_its_line(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MINIMAL.replace("app@", "app:${SHOP_PASSWORD}@"))
        assert "line 1: source.url: the environment variable SHOP_PASSWORD is not set" in error.detail

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        error = refused(tmp_path, MINIMAL.replace("./lake", '"${file:/no/such/file}"'))
        assert "/no/such/file cannot be read" in error.detail

    @pytest.mark.parametrize("text", ["${}", "${a b}", "${1A}", "${A:+b}"])
    def test_a_placeholder_of_another_form_is_refused(self, text: str) -> None:
        with pytest.raises(SubstitutionError):
            substitute(text, {}, Path())

    def test_two_dollars_stand_for_one(self) -> None:
        assert substitute("a$${B}$c$", {"B": "x"}, Path()) == "a${B}$c$"

    @given(st.text(min_size=1))
    def test_any_password_arrives_in_the_url_as_it_is(self, password: str) -> None:
        try:
            password.encode()
        except UnicodeEncodeError:
            return  # a lone surrogate is in no environment
        for template in ("postgresql://app:${P}@db:5432/shop", "postgresql://app:x${P}@db:5432/shop?a=b"):
            parts = urlsplit(substitute(template, {"P": password}, Path()))
            assert unquote(parts.password or "").endswith(password)
            assert (parts.hostname, parts.port, parts.path) == ("db", 5432, "/shop")
        query = urlsplit(substitute("postgresql:///shop?password=${P}", {"P": password}, Path())).query
        assert unquote(query.removeprefix("password=")) == password

    @given(st.text(min_size=1))
    def test_a_value_that_is_the_whole_text_is_not_touched(self, value: str) -> None:
        assert substitute("${P}", {"P": value}, Path()) == value

    @given(st.text(alphabet=st.characters(exclude_characters="$")))
    def test_text_without_dollars_stays(self, text: str) -> None:
        assert substitute(text, {}, Path()) == text

    @given(st.text())
    def test_a_value_cannot_name_further_variables(self, value: str) -> None:
        assert substitute("${A}", {"A": f"${{B}}{value}", "B": "no"}, Path()) == f"${{B}}{value}"

    def test_yaml_that_holds_itself_is_refused(self, tmp_path: Path) -> None:
        assert "nested too deeply" in refused(tmp_path, MINIMAL + "exclude: &a [*a]\n").detail


names = st.text(alphabet=string.ascii_lowercase + "_", min_size=1, max_size=4)
streams = st.builds(StreamId, st.sampled_from(["public", "shop"]), names)


class TestWhichStreams:
    available = ids("public.orders", "public.order_lines", "public.events", "shop.Weird Name", "shop.a.b")

    def chosen(self, *entries: str | StreamConfig, exclude: tuple[str, ...] = ()) -> dict[str, StreamConfig]:
        config = Config.model_construct(
            streams=[StreamConfig(table=entry) if isinstance(entry, str) else entry for entry in entries],
            exclude=list(exclude),
        )
        return {stream.table: stream for stream in config.resolve_streams(self.available)}

    def test_a_pattern_stands_for_all_it_matches(self) -> None:
        assert list(self.chosen("public.order*")) == ["public.order_lines", "public.orders"]
        assert list(self.chosen("shop.*")) == ["shop.Weird Name", "shop.a.b"]

    @pytest.mark.parametrize("exact_first", [True, False])
    def test_an_exact_entry_wins_over_a_pattern_wherever_it_stands(self, exact_first: bool) -> None:
        exact = StreamConfig(table="public.events", write="append")
        entries: list[str | StreamConfig] = [exact, "public.*"] if exact_first else ["public.*", exact]
        chosen = self.chosen(*entries)
        assert {table: stream.write for table, stream in chosen.items()} == {
            "public.events": "append",
            "public.order_lines": "upsert",
            "public.orders": "upsert",
        }

    def test_of_two_patterns_the_later_wins(self) -> None:
        chosen = self.chosen("public.*", StreamConfig(table="public.order*", write="append"))
        assert chosen["public.orders"].write == "append"
        assert chosen["public.events"].write == "upsert"

    def test_exclude_takes_from_patterns_and_leaves_what_is_named(self) -> None:
        assert list(self.chosen("public.*", exclude=("public.order*",))) == ["public.events"]
        assert "public.orders" in self.chosen("public.*", "public.orders", exclude=("public.order*",))

    def test_a_named_stream_that_is_not_there_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError) as caught:
            self.chosen("public.ordres")
        assert caught.value.stream == "public.ordres"
        assert "Did you mean public.orders?" in caught.value.remedy

    def test_the_nearest_is_found_across_upper_and_lower_case(self) -> None:
        with pytest.raises(ConfigError, match=r"Did you mean shop\.Weird Name"):
            self.chosen("shop.weird name")

    def test_patterns_that_match_nothing_at_all_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="No table matches"):
            self.chosen("pubic.*")

    def test_patterns_that_match_nothing_are_told(self) -> None:
        config = Config.model_construct(streams=[StreamConfig(table=t) for t in ("pubic.*", "shop.*")])
        assert config.unmatched_patterns(self.available) == ids("pubic.*")

    @given(st.lists(streams, unique=True, min_size=1), st.data())
    def test_what_is_chosen_is_what_is_matched_and_not_excluded(
        self, available: list[StreamId], data: st.DataObject
    ) -> None:
        exact = data.draw(st.lists(st.sampled_from(available), unique=True))
        excluded = data.draw(st.lists(st.sampled_from(ids("public.*", "shop.a*", "*._*"))))
        entries = [*ids("public.*"), *exact]
        expected = {
            stream
            for stream in available
            if stream in exact
            or (stream.namespace == "public" and not any(pattern.matches(stream) for pattern in excluded))
        }
        if not expected:
            with pytest.raises(ConfigError):
                choose(entries, excluded, available)
            return
        chosen = choose(entries, excluded, available)
        assert set(chosen) == expected
        assert all(entries[chosen[stream]] == stream for stream in exact)


class _Lake(Section):
    type: Literal["lake"]
    depth: int


class _River(Section):
    type: Literal["river"]
    length: int


class _Water(Section):
    water: Annotated[_Lake | _River, Field(discriminator="type")]


@pytest.mark.parametrize(
    ("water", "problem"),
    [
        ({"type": "river"}, (("water", "length"), "is missing.")),
        (
            {"type": "river", "length": 1, "lenght": 2},
            (("water", "lenght"), "unknown key `lenght`; did you mean `length`?"),
        ),
        ({"type": "sea"}, (("water", "type"), "`sea` is not known; known are 'lake', 'river'.")),
        ({"depth": 3}, (("water", "type"), "is missing.")),
    ],
)
def test_a_section_of_several_kinds_says_what_is_wrong_at_its_place_in_the_file(
    water: dict[str, object], problem: Problem
) -> None:
    with pytest.raises(ValidationError) as raised:
        _Water.model_validate({"water": water})
    assert problems_of(raised.value, _Water) == [problem]
