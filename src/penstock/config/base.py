"""`Section`: what all sections of the pipeline file have in common.

A key that is not known is an error, a section does not change once it was checked, and no value appears in
errors: it may have come from the environment. The docstring below a key is its line in
docs/reference/configuration.md.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )
