"""The suite in every process; what failed goes to FOLDER/rankR.json."""

import json
import os
import sys
from pathlib import Path

import auqadmm as aq
from auqadmm.testing import EngineSuite

found = EngineSuite(lambda: aq.engines.Torch(timeout=60)).failures()
Path(sys.argv[1], f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
