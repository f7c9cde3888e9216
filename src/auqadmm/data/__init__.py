"""Image data sets by name or from their official files, and ways to split rows over workers.

>>> from auqadmm.data import by_class, load
>>> images = load("mnist", "path/to/data")  # without a folder: $AUQADMM_DATA, the user's cache, a download
>>> blocks = by_class(images.X / images.white, images.y, per_class=2000)
"""

from auqadmm.data.fetch import Progress
from auqadmm.data.find import NAMES, load, locate, user_cache
from auqadmm.data.images import DataError, Images, cifar10, digits, mnist, svhn
from auqadmm.data.partitions import by_class, dirichlet, iid, sizes

__all__ = [
    "NAMES",
    "DataError",
    "Images",
    "Progress",
    "by_class",
    "cifar10",
    "digits",
    "dirichlet",
    "iid",
    "load",
    "locate",
    "mnist",
    "sizes",
    "svhn",
    "user_cache",
]
