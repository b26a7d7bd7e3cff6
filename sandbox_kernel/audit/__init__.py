"""The audit log: what every cell was, what was decided about it and how it ended, in a chain of records."""
