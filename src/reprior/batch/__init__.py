"""Batch methods: one EM driver, a file for each method, and the registry that names them."""
