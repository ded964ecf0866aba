"""MongoDB: raw BSON into Arrow, chunks of a collection, its change stream."""
