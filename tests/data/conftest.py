"""A web server on this machine, and small data sets in the official layouts that it serves."""

from __future__ import annotations

import gzip
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from auqadmm.paper.data import fetch
from auqadmm.paper.data.fetch import DATA_SETS
from tests.data.serving import Site, answer, tar_gz
from tests.data.test_images import idx, records


@pytest.fixture
def site(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            site.asked.append(self.path)
            page = site.pages.get(self.path)
            try:
                if page is None:
                    self.send_error(404)
                elif isinstance(page, bytes):
                    answer(self, page, len(page))
                else:
                    page(self)
            except OSError:  # the client has left
                self.close_connection = True

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield site
    site.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def published(site, tmp_path, monkeypatch, rng):
    """mnist and cifar10, tiny, on the server; an empty cache; no AUQADMM_DATA."""
    monkeypatch.delenv("AUQADMM_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    grey, labels = rng.integers(0, 256, (12, 5, 4), dtype=np.uint8), rng.integers(0, 10, 12, dtype=np.uint8)
    files = {
        f"{part}-{what}-idx{array.ndim}-ubyte.gz": gzip.compress(idx(array))
        for part in ("train", "t10k")
        for what, array in (("images", grey), ("labels", labels))
    }
    mnist = {name: site.source(name, content) for name, content in files.items()}
    batch = records(rng.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8), labels[:2])
    names = [f"cifar-10-batches-bin/{n}.bin" for n in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")]
    archive = tar_gz(dict.fromkeys(names, batch) | {"cifar-10-batches-bin/readme.html": b"hello"})
    cifar = site.source("cifar-10-binary.tar.gz", archive, members=dict.fromkeys(names, len(batch)))
    train, test = (tuple(s for n, s in mnist.items() if n.startswith(part)) for part in ("train", "t10k"))
    sets = {
        "mnist": replace(DATA_SETS["mnist"], train=train, test=test),
        "cifar10": replace(DATA_SETS["cifar10"], train=(cifar,), test=(cifar,)),
        "svhn": replace(DATA_SETS["svhn"], train=(site.source("train_32x32.mat", b"?"),)),
    }
    monkeypatch.setattr(fetch, "DATA_SETS", sets)
    return sets
