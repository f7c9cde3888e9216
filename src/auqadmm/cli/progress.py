"""Progress of the commands: the library's own display."""

from __future__ import annotations

from auqadmm.callbacks.progress import Progress

__all__ = ["Progress"]
