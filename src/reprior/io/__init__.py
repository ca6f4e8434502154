"""Readers and writers of tables and of streams of records, and scratch files."""
