"""Play one script to plain ipykernel and to another kernel, and compare all they say.

python -m tests.conformance.side_by_side [--other KERNEL] [--level LEVEL]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kernel import LEVELS

from .differences import differences, table, undeclared
from .kernels import PLAIN, SANDBOXED
from .recorder import Recording, record
from .script import SCRIPT


def recordings(*kernels: str, level: str = "process") -> list[Recording]:
    """What each kernel says to the script, all of them at the same time."""
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor() as threads:
        homes = [Path(temporary, str(number)) for number in range(len(kernels))]
        for home in homes:
            home.mkdir()
        return list(
            threads.map(lambda kernel, home: record(kernel, SCRIPT, home, level), kernels, homes)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", default=SANDBOXED, metavar="KERNEL", help="default: %(default)s")
    parser.add_argument("--level", default="process", choices=LEVELS, help="default: %(default)s")
    options = parser.parse_args()
    plain, other = recordings(PLAIN, options.other, level=options.level)
    print(table(SCRIPT, plain, other))
    return any(undeclared(differences(exchange, plain, other)) for exchange in SCRIPT)


if __name__ == "__main__":
    sys.exit(main())
