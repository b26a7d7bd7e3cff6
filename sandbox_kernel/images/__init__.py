"""Images that cells run in at the container levels: built without network, recorded by digest."""

from collections.abc import Callable

# Told how far a build is: what it does now, steps done, steps in all (0 where nobody knows).
Report = Callable[[str, int, int], None]
