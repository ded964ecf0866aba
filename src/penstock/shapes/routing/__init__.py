"""Which shapes a change concerns: an index of equalities, compiled conditions for the rest."""
