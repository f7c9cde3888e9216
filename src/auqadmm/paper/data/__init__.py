"""Image data sets by name or from their official files, and ways to split rows over workers.

>>> from auqadmm.paper.data import by_class, load, partition_table
>>> images = load("mnist", "path/to/data")  # without a folder: $AUQADMM_DATA, the user's cache, a download
>>> blocks = by_class(images.X / images.white, images.y, per_class=2000)
>>> partition_table(blocks).rows()[0]
('0', '2000', '–', '–', '–', '–', '–', '–', '–', '–', '–', '2000')
"""

from auqadmm.paper.data.fetch import NAMES, Progress, load, locate, user_cache
from auqadmm.paper.data.images import DataError, Images, cifar10, digits, mnist, svhn
from auqadmm.paper.data.partitions import (
    PartitionTable,
    by_class,
    by_column,
    classes_per_worker,
    dirichlet,
    iid,
    partition_table,
    sites,
    sizes,
)

__all__ = [
    "NAMES",
    "DataError",
    "Images",
    "PartitionTable",
    "Progress",
    "by_class",
    "by_column",
    "cifar10",
    "classes_per_worker",
    "digits",
    "dirichlet",
    "iid",
    "load",
    "locate",
    "mnist",
    "partition_table",
    "sites",
    "sizes",
    "svhn",
    "user_cache",
]
