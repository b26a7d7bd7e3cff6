"""`python -m sandbox_kernel`: the same as the `sandbox-kernel` command."""

import sys

from sandbox_kernel.cli import main

sys.exit(main())
