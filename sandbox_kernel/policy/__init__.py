"""Policies: what a cell may do and use, read from YAML that only trusted people can write."""
