"""Limits: what a sandbox uses, measured from outside."""
