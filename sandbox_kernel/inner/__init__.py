"""What runs inside the sandbox: copied into the run directory, so that it needs no install there.

Only the standard library and ipykernel may be imported from these modules.
"""
