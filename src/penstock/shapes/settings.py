"""What the live lane is told: its section of the pipeline file, and where it lives.

A setting is what the command line says, else what the pipeline file says, else what the environment says by
Electric's names (`environment`), else its default. It travels to the process as JSON on stdin, so that no
secret stands in arguments, and shows none in `repr` or errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import SecretStr, ValidationError

from penstock.config import Config, PostgresSourceConfig
from penstock.config.problems import problems_of
from penstock.config.shapes import SHAPES_LANE, RequestLimits, ShapesConfig
from penstock.config.values import Identifier, PostgresUrl, SlotName
from penstock.core.errors import ConfigError
from penstock.shapes.environment import Found, from_environment

__all__ = ["SHAPES_LANE", "RequestLimits", "ShapeSettings"]


class ShapeSettings(ShapesConfig):
    """Made by `of_pipeline` or `standalone`; a test gives `url` and `directory`, and has defaults else."""

    url: PostgresUrl
    """Straight to the source."""
    directory: Path
    """Where shapes are kept: this lane's own."""
    slot: SlotName = "penstock_slot_default"
    publication: Identifier = "penstock_publication_default"
    publication_mode: Literal["auto", "manual"] = "auto"

    @property
    def source_url(self) -> str:
        return self.url.get_secret_value()

    @property
    def query_url(self) -> str:
        """Where rows are read: at the pooler, if there is one."""
        return (self.pooled_url or self.url).get_secret_value()

    @property
    def secret_text(self) -> str | None:
        return None if self.secret is None else self.secret.get_secret_value()

    @classmethod
    def of_pipeline(cls, config: Config, environment: Mapping[str, str]) -> Self:
        """For `penstock run`, whose pipeline file has the lane."""
        lane, source = config.lanes.shapes, config.source
        assert lane is not None, "only a lane that is configured is started"
        assert isinstance(source, PostgresSourceConfig), "shapes are for Postgres alone"
        given = {name: getattr(lane, name) for name in lane.model_fields_set}
        place = {
            "url": source.url,
            "directory": lane.storage_dir or config.state / SHAPES_LANE,
            "slot": source.slot,
            "publication": source.publication,
            "publication_mode": source.publication_mode,
        }
        found = from_environment(environment)
        return cls._checked({**found.values, **given, **place}, found)

    @classmethod
    def standalone(
        cls,
        environment: Mapping[str, str],
        options: Mapping[str, Any],
        state: Path,
        names: Mapping[str, str],
    ) -> Self:
        """For `penstock shapes serve`: `options` of the command line, `names` at the source."""
        found = from_environment(environment)
        return cls._checked({**found.values, **options, "directory": state / SHAPES_LANE, **names}, found)

    @classmethod
    def _checked(cls, values: Mapping[str, Any], found: Found) -> Self:
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            problems = [
                f"{found.variables.get(str(place[0]), str(place[0])) if place else 'settings'}: {sentence}"
                for place, sentence in problems_of(error, cls)
            ]
            raise ConfigError(
                "The settings of the live lane are not as they should be.",
                detail="\n".join(problems),
                remedy="docs/guides/shapes.md lists every setting and its names.",
            ) from None
        settings._require_guard()
        return settings

    def _require_guard(self) -> None:
        if self.secret is not None and self.insecure:
            raise ConfigError(
                "There is a secret, and yet shapes are to be served without one.",
                remedy="Leave out `insecure` (ELECTRIC_INSECURE), or the secret.",
            )
        if self.secret is None and not self.insecure:
            raise ConfigError(
                "Shapes are served to whoever knows a secret, and none is set.",
                remedy="Set ELECTRIC_SECRET (`lanes.shapes.secret`) to a long random text. For development, "
                "or behind a proxy that lets nobody else through: ELECTRIC_INSECURE=true "
                "(`lanes.shapes.insecure: true`).",
            )

    def to_json(self) -> dict[str, Any]:
        """With the secrets: for the process's stdin and nothing else."""
        shown = self.model_dump(mode="json")
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        secrets = {
            name: value.get_secret_value() for name, value in fields.items() if isinstance(value, SecretStr)
        }
        durations = {
            name: f"{value.total_seconds():f}s"
            for name, value in fields.items()
            if isinstance(value, timedelta)
        }
        return {**shown, **secrets, **durations}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return cls.model_validate(fields)
