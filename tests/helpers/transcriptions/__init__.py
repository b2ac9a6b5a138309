"""Every algorithm of the field in NumPy, float64, line by line from the papers; nothing of the package is used here.

Every public function of a module here is one of `transcriptions`: a new one is written and nothing else.
"""

import pkgutil
from importlib import import_module
from types import FunctionType

from .common import Oracle as Oracle
from .common import Path as Path

_MODULES = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__) if m.name != "cases"]
globals().update(  # a function wins over the module of its name
    {
        name: found
        for module in _MODULES
        for name, found in vars(module).items()
        if isinstance(found, FunctionType) and found.__module__ == module.__name__ and not name.startswith("_")
    }
)
