"""Run examples one after the other in this process, and write to a file how each of them ended; 0 is well."""

import json
import runpy
import sys
from pathlib import Path

results, *files = map(Path, sys.argv[1:])
found = {}
for file in files:
    try:
        runpy.run_path(str(file), run_name="__main__")
        found[file.stem] = 0
    except SystemExit as done:
        found[file.stem] = done.code or 0
    except Exception as error:
        found[file.stem] = repr(error)
    results.write_text(json.dumps(found), encoding="utf-8")
