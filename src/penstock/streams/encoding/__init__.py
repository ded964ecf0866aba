"""Changes of tables as records: keys and values in the format that a lane is asked for."""
