"""Play one script to plain ipykernel and to another kernel, and compare all they say.

python -m tests.conformance.side_by_side [--other KERNEL]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .differences import differences, table, undeclared
from .kernels import PLAIN, SANDBOXED
from .recorder import Recording, record
from .script import SCRIPT


def recordings(*kernels: str) -> list[Recording]:
    """What each kernel says to the script, all of them at the same time."""
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor() as threads:
        homes = [Path(temporary, str(number)) for number in range(len(kernels))]
        for home in homes:
            home.mkdir()
        return list(threads.map(lambda kernel, home: record(kernel, SCRIPT, home), kernels, homes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", default=SANDBOXED, metavar="KERNEL", help="default: %(default)s")
    plain, other = recordings(PLAIN, parser.parse_args().other)
    print(table(SCRIPT, plain, other))
    return any(undeclared(differences(exchange, plain, other)) for exchange in SCRIPT)


if __name__ == "__main__":
    sys.exit(main())
