"""Isolation levels: how the inner kernel is kept away from the host."""
