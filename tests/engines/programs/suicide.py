"""As endless.py, but rank 1 kills itself with SIGKILL in iteration 6. Arguments: FOLDER."""

import os
import runpy
import signal
import sys
from pathlib import Path

import auqadmm as aq

solve = aq.solve


def doomed(*args, callbacks=(), **options):
    def die(event):
        if event.row.iteration == 6 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    return solve(*args, callbacks=[*callbacks, die], **options)


aq.solve = doomed
sys.argv.append("60")
runpy.run_path(str(Path(__file__).with_name("endless.py")), run_name="__main__")
