"""What a MATLAB 5 file announces, checked against its size before a parser believes it.

A file is a header of 128 bytes, then one element per variable: a tag (type, bytes) and its bytes, as they are
(miMATRIX) or deflated (miCOMPRESSED around a miMATRIX). A matrix starts with four elements of its own: flags,
dimensions, name, data. Every one announces its length, and parsers allocate what is announced.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

MATRIX, COMPRESSED = 14, 15
# types of the first three parts of a matrix: miUINT32, miINT32, miINT8
PARTS = (6, 5, 1)
# bytes of a number of each type that data may have
BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}
NUMERIC = range(6, 16)
COMPLEX = 0x08
# deflate cannot expand data by more than this factor
EXPANSION = 1032
START = 512


def check_mat5(path: Path, names: tuple[str, ...]) -> str | None:
    """What is wrong with the file, None if every length fits and all `names` are real numeric arrays."""
    size = path.stat().st_size
    missing = set(names)
    with path.open("rb") as file:
        head = file.read(128)
        order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
        if head.startswith((b"MATLAB 7.3", b"\x89HDF")):
            return "is a MATLAB 7.3 (HDF5) file; save it with -v7"
        # a zero among the first four bytes would make a parser take the file for MATLAB 4
        if order is None or 0 in head[:4] or struct.unpack(f"{order}H", head[124:126])[0] != 0x0100:
            return "is not a MATLAB 5 file"
        at = 128
        while at < size:
            file.seek(at)
            tag = file.read(8)
            if len(tag) < 8:
                return "is truncated inside the header of a variable"
            kind, count = struct.unpack(f"{order}2I", tag)
            if count > size - at - 8:
                return f"announces {count} bytes at offset {at}, {size - at - 8} are left"
            start, room = file.read(min(count, START)), count
            if kind == COMPRESSED:
                start = zlib.decompressobj().decompress(start, START)
                if len(start) < 8:
                    return f"holds compressed data at offset {at} that are cut off"
                kind, announced = struct.unpack(f"{order}2I", start[:8])
                start, room = start[8:], EXPANSION * count
                if announced > room:
                    return f"announces {announced} bytes in {count} compressed ones at offset {at}"
                room = announced
            if kind != MATRIX:
                return f"holds something other than an array (type {kind}) at offset {at}"
            name = _matrix(start, room, order)
            if name is None:
                return f"holds a damaged or unusual array at offset {at}"
            missing.discard(name)
            at += 8 + count
    return f"holds no variable {' and no variable '.join(sorted(missing))}" if missing else None


def _matrix(start: bytes, room: int, order: str) -> str | None:
    """The name of a real numeric array whose parts fit together and into `room` bytes; None if they do not."""
    at, kinds, parts, counts = 0, [], [], []
    for _ in range(4):  # flags, dimensions, name, data
        if len(start) < at + 8:
            return None
        kind, count = struct.unpack(f"{order}2I", start[at : at + 8])
        first = at + 8
        if kind > 0xFFFF:  # up to four bytes share the tag
            kind, count, first = kind & 0xFFFF, kind >> 16, at + 4
            if count > 4:
                return None
        if first + count > room:
            return None
        kinds.append(kind)
        counts.append(count)
        parts.append(start[first : first + count])
        at = first + count + (-(first + count) % 8)
    flags, dimensions, name, _ = parts
    # scipy looks types up without checking them: one that does not exist ends the process
    if tuple(kinds[:3]) != PARTS or kinds[3] not in BYTES or len(flags) != 8 or len(dimensions) not in (8, 12, 16):
        return None
    word = struct.unpack(f"{order}I", flags[:4])[0]
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    if word & 0xFF not in NUMERIC or word >> 8 & COMPLEX or min(shape) < 0:
        return None
    return name.decode("latin-1") if counts[3] == BYTES[kinds[3]] * math.prod(shape) else None
