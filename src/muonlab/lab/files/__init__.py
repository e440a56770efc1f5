"""Files of a run directory: atomic writes, JSON with a hash, rows that a resumed run continues."""
