"""How values are held: exact text, as the change log has it, and the Arrow values that are made of it."""
