"""The sandbox's entry: ``python boot.py CONNECTION_FILE``.

Nothing of the package is installed inside. What lies beside this file is imported from there, out of
the way of cells, whose path it must not be on.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

PACKAGE = "_sandbox"

if __name__ == "__main__":
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [sys.path.pop(0)]
    sys.modules[PACKAGE] = module_from_spec(spec)
    import_module(f"{PACKAGE}.supervisor").main(sys.argv[1])
