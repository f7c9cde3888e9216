"""A site as a process of its own: answers are the bytes asked for, in upper case, after what the text says.

    python -m tests.sites.program site.toml

`sleep N` waits, `fail` raises, `decline` raises what may be told, `count` tells how often it was called.
"""

from __future__ import annotations

import sys
import threading
import time

from auqadmm.sites.daemon import RunInfo, serve
from auqadmm.sites.refusals import Declined
from auqadmm.sites.settings import read_site


class Upper:
    def __init__(self, info: RunInfo) -> None:
        self.info, self.calls = info, 0

    def __call__(self, number: int, body: bytes) -> bytes:
        self.calls += 1
        words = body[:64].split()
        if words[:1] == [b"sleep"]:
            time.sleep(float(words[1]))
        elif words[:1] == [b"fail"]:
            raise ValueError("patient 17 has no age")
        elif words[:1] == [b"decline"]:
            raise Declined("this is not given out.")
        elif words[:1] == [b"count"]:
            return str(self.calls).encode()
        return body.upper()

    def close(self) -> None:
        sys.stdout.write(f"closed {self.info.run}\n")
        sys.stdout.flush()


def log(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        serve(read_site(sys.argv[1]), Upper, threading.Event(), log)
    except KeyboardInterrupt:
        log("left")
