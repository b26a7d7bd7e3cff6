"""Sandboxed Python for Jupyter: a wrapper kernel in front of a hardened inner kernel."""

__version__ = "0.1.0"
