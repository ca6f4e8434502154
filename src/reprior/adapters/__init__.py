"""Readers and bridges to other libraries; each behind an extra."""
