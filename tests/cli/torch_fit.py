"""`auqadmm` as one of several processes, with a record of the data files that this one opens.

torch_fit.py FOLDER ARGUMENT…    FOLDER/opened-RANK.json
"""

import json
import os
import sys
from pathlib import Path

opened = set()


def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and Path(arguments[0]).name.startswith("part-"):
        opened.add(Path(arguments[0]).name)


sys.addaudithook(note)

from auqadmm.cli import main  # noqa: E402

folder, *rest = sys.argv[1:]
try:
    main(rest)
finally:
    Path(folder, f"opened-{os.environ['RANK']}.json").write_text(json.dumps(sorted(opened)))
