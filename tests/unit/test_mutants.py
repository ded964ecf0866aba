"""The planted bugs of `make mutants` can be planted: said at once, not at the end of a long run."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_that_a_mutant_edits_is_there_once_and_becomes_another_program(mutant: Mutant) -> None:
    assert mutant.places(ROOT / "src") == 1
    source = (ROOT / "src" / "penstock" / mutant.file).read_text()
    compile(source.replace(mutant.find, mutant.put), mutant.file, "exec")
