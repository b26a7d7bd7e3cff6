"""The script: everything a frontend can ask of a kernel, one exchange after the other.

The exchanges share one kernel and build on each other, so their order matters.
"""

from __future__ import annotations

from .exchange import Exchange
from .recorder import UNASKED
from .script_cells import BACKGROUND, CELLS, FILES, INPUT
from .script_comms import COMMS, SUBSHELLS
from .script_debugger import DEBUGGER
from .script_outputs import OUTPUTS
from .script_questions import ENDING, HISTORY, INFORMATION, MALFORMED, QUESTIONS
from .script_queue import QUEUE

SCRIPT: tuple[Exchange, ...] = (
    *INFORMATION,
    *CELLS,
    *FILES,
    *OUTPUTS,
    *INPUT,
    *BACKGROUND,
    *QUEUE,
    *HISTORY,
    *QUESTIONS,
    *COMMS,
    *SUBSHELLS,
    *MALFORMED,
    *DEBUGGER,
    *ENDING,
    UNASKED,
)
