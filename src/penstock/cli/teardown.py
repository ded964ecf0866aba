"""`penstock teardown`: take away what Penstock left at the source."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.settings import open_pipeline, settings_of
from penstock.config import MongoSourceConfig, PostgresSourceConfig
from penstock.core.errors import ConfigError


def teardown(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Yes, drop them.")] = False,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Also a slot this state directory never read from.")
    ] = False,
) -> None:
    """Drop the slot and the publication. Tables and state stay; the pipeline can no longer go on."""
    settings = settings_of(context)
    pipeline = open_pipeline(settings)
    source = pipeline.config.source
    if not yes and source.type != "mysql":  # where nothing was made
        raise ConfigError(
            f"This drops {_made_by(source)} at the source.",
            detail="Changes made afterwards are not captured; the pipeline cannot go on from its state.",
            remedy="Add --yes if that is what you want.",
        )
    dropped = pipeline.teardown(force=force)
    if settings.json:
        settings.emit_json({"dropped": dropped})
        return
    for item in dropped:
        settings.out.print(f"dropped {item}", markup=False, highlight=False)
    if not dropped:
        settings.out.print("There was nothing to drop.")


def _made_by(source: PostgresSourceConfig | MongoSourceConfig) -> str:
    if source.type == "postgres":
        return f"the slot {source.slot} and the publication {source.publication}"
    return f"what the pipeline {source.name} has in the collection penstock.control"
