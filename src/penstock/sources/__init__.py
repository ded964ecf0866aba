"""Where changes come from. A source knows `core` only; capture and lanes use it."""
