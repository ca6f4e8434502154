"""An estimate and what it can do: correct, intervals, prediction sets, tables and pictures."""
