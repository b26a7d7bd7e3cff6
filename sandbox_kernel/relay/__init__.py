"""The relay: Jupyter messages between the frontend and the inner kernel, one trust boundary apart."""
