"""The wire of shapes: Electric's HTTP API over the engine's shapes."""
