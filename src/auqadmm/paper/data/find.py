"""Data sets by name: found on this machine, or downloaded once.

Searched in this order; only the first place with any file of the data set is read, so that two
copies are never mixed:

    1. the folder the caller names (`--data DIR`): DIR/<name>, or DIR itself
    2. $AUQADMM_DATA, in the same way
    3. the user's cache: <cache>/<name>, where downloads are kept
    4. the address of the data set: what the cache lacks is downloaded, unless that is forbidden

Files in named folders may be any part of a data set; only downloads are compared with published checksums.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from auqadmm.paper.data.fetch import Progress, fetch
from auqadmm.paper.data.images import DataError, Images, digits
from auqadmm.paper.data.sources import DATA_SETS

NAMES = ("digits", *DATA_SETS)
VARIABLE = "AUQADMM_DATA"
Folder = str | os.PathLike[str]


def load(
    name: str,
    data: Folder | None = None,
    train: bool = True,
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> Images:
    """A data set by name.

    Parameters
    ----------
    name
        "mnist", "cifar10", "svhn", or "digits", which comes with scikit-learn.
    data
        A folder to look in first: the folder of the data set, or one with a folder `name`.
    train
        The training images; False for the test images.
    download
        Whether to download what is not on this machine into `user_cache()`.
    progress
        Called as `progress(file, done, total)`, in bytes, while a file is downloaded.
    """
    if name == "digits":
        return digits(train)
    root = locate(name, data, train, download=download, progress=progress)
    try:
        return DATA_SETS[name].read(root, train)
    except DataError as error:
        if root != user_cache() / name:
            raise
        raise DataError(f"{str(error).rstrip('.')}; delete {root}, and it will be downloaded again.") from None


def locate(
    name: str,
    data: Folder | None = None,
    train: bool = True,
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The folder of a data set, for its reader; the parameters are those of `load`."""
    if name not in DATA_SETS:
        hint = ": it comes with scikit-learn and has no folder" if name == "digits" else ""
        raise DataError(f"{name!r} is not one of {', '.join(DATA_SETS)}{hint}.")
    wanted = DATA_SETS[name]
    named = [("--data", data), (VARIABLE, os.environ.get(VARIABLE) or None)]
    looked = []
    for option, given in named:
        if given is None:
            continue
        folder = _existing(option, given)
        for place in (folder / name, folder):
            try:
                if wanted.in_folder(place):
                    return place
            except OSError as error:
                raise DataError(f"{place}: cannot be read ({error.strerror or error}).") from None
        looked.append(str(folder))
    cache = user_cache() / name
    missing = [source for source in wanted.sources(train) if not source.in_cache(cache)]
    if missing and not download:
        places = ", ".join([*looked, str(cache)])
        files = " and ".join(source.url for source in missing)
        raise DataError(
            f"{name} is not on this machine (looked in {places}) and may not be downloaded; allow it, or get {files} "
            f"and name the folder with --data DIR or {VARIABLE}."
        )
    for source in missing:
        fetch(source, cache, progress)
    return cache


def user_cache() -> Path:
    """Where downloads are kept: the system's cache folder, in a folder `auqadmm`."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # by the XDG rules a relative path is ignored
        base = base if os.path.isabs(base) else "~/.cache"
    folder = Path(os.path.expanduser(base))
    if not folder.is_absolute():
        raise DataError(f"There is no home directory for {base}; name a folder with --data DIR or {VARIABLE}.")
    return folder / "auqadmm"


def _existing(option: str, given: Folder) -> Path:
    folder = Path(os.path.expanduser(given))
    try:
        if folder.is_dir():
            return folder
        reason = "is no folder" if folder.exists() else "does not exist"
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    raise DataError(f"{folder}, named by {option}, {reason}.")
