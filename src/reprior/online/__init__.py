"""Online methods, streams, tables of keyed streams, and alarms."""
