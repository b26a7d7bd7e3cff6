"""Attempts to get out of a sandbox, or at something of the host's.

``attack`` says what a probe is. The modules in ``attack.MODULES`` hold the probes; they use nothing but the
standard library, because their text is run in the sandbox. ``stage`` is the host: what is planted there to
be reached (with ``listeners``, ``neighbour``, ``facts``). ``control`` runs the same probes without a sandbox,
and ``witnesses`` look on.
"""
