"""Outputs: what a cell shows, and what the wrapper adds to it."""
