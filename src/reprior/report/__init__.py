"""What to show people: one picture, one self-contained HTML page, the same as JSON."""
