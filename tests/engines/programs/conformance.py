"""The suite in every process; what failed goes to FOLDER/rankR.json.

conformance.py FOLDER FIRST STEP    of the iterates every STEP-th check, from the FIRST
"""

import json
import os
import sys
from pathlib import Path

import auqadmm as aq
from tests.engines.driven import Part

folder, first, step = sys.argv[1:]
found = Part(lambda: aq.engines.Torch(timeout=60), int(first), int(step)).failures()
Path(folder, f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
