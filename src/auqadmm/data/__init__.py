"""Image data sets in their official file layouts, and ways to split rows over workers.

>>> from auqadmm.data import by_class, find_root, mnist
>>> images = mnist(find_root("mnist", "path/to/mnist"))
>>> blocks = by_class(images.X / 255.0, images.y, per_class=2000)
"""

from auqadmm.data.images import DataError, Images, cifar10, find_root, mnist, svhn
from auqadmm.data.partitions import by_class, dirichlet, iid, sizes

__all__ = ["DataError", "Images", "by_class", "cifar10", "dirichlet", "find_root", "iid", "mnist", "sizes", "svhn"]
