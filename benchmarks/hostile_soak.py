"""Attack a wrapper from inside its sandbox for a given time: ``hostile_soak.py --minutes 60 --seed 7``.

Ends with 0 if the wrapper lived, grew by no more than 64 MiB, kept within its share of a processor and
answered every kernel_info_request within a second; with 1 and what was wrong otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from sandbox_kernel.policy.effective import as_document
from sandbox_kernel.policy.load import load_policy
from tests.hostile.soak import Soak
from tests.kernel import UNCHECKED, running_kernel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--level", choices=["process", "container", "gvisor"], default="process")
    return parser.parse_args()


def main() -> int:
    options = parse()
    print(f"seed {options.seed}, {options.minutes} minutes", flush=True)
    with tempfile.TemporaryDirectory() as home:
        # The check of the code would only keep the attack from being sent.
        policies = Path(home, "sandbox-kernel", "policies")
        policies.mkdir(parents=True)
        document = as_document(load_policy("default")) | {
            "code": as_document(load_policy("trusted"))["code"]
        }
        (policies / f"{UNCHECKED}.yaml").write_text(yaml.safe_dump(document))
        folder = Path(home, "notebook")
        folder.mkdir()
        os.environ |= {
            "XDG_CONFIG_HOME": home,
            "SANDBOX_KERNEL_POLICY": UNCHECKED,
            "SANDBOX_KERNEL_HOME": f"{home}/state",
            "JUPYTER_RUNTIME_DIR": f"{home}/runtime",
        }
        with running_kernel(cwd=folder, level=options.level) as kernel:
            soak = Soak(kernel, options.seed).run(options.minutes * 60)
            print(kernel.logged().decode()[-4000:], file=sys.stderr)
    print(soak.summary())
    faults = soak.faults()
    print("FAILED: " + "; ".join(faults) if faults else "passed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
