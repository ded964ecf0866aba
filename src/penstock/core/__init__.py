"""The nouns of Penstock, without I/O: positions, offsets, streams, schemas, errors."""
