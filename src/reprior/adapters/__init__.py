"""Bridges to neighbours, each behind an extra of its own; importing this package imports none of them."""
