"""Values as bytes that say what they are: kind, protocol number, fields, arrays, checksum.

Layout, little-endian: ``b"reprior\\0"``, protocol (u16), header length (u32), header (JSON), arrays one after the
other, BLAKE2b-128 of all that. Readers of a later release keep reading every earlier protocol.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from reprior._check import fail

PROTOCOL = 1
MAGIC = b"reprior\0"
HEAD = struct.Struct("<8sHI")
DIGEST = 16


def encode(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return `fields` (JSON values and arrays) as bytes of the given kind.

    >>> decode(encode("note", {"n": 3, "x": np.ones(2)}), "note", "example")
    {'n': 3, 'x': array([1., 1.])}
    """
    arrays = {name: x for name, x in fields.items() if isinstance(x, np.ndarray)}
    arrays = {name: x.astype(x.dtype.newbyteorder("<"), copy=False) for name, x in arrays.items()}
    header = {
        "kind": kind,
        "fields": {name: value for name, value in fields.items() if name not in arrays},
        "arrays": [[name, x.dtype.str, list(x.shape)] for name, x in arrays.items()],
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False, default=np.generic.item).encode()
    body = HEAD.pack(MAGIC, PROTOCOL, len(text)) + text + b"".join(x.tobytes() for x in arrays.values())
    return body + blake2b(body, digest_size=DIGEST).digest()


def decode(data: Any, kind: str, caller: str, *, name: str = "data") -> dict[str, Any]:
    """Return the fields of bytes made by `encode` with the same kind; arrays are fresh and writable."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        fail(caller, name, "be bytes", type(data).__name__)
    raw = bytes(data)
    remedy = "Read it again from where it was stored; it cannot be repaired"
    if not raw.startswith(MAGIC):
        fail(caller, name, "be bytes written by reprior", f"{len(raw)} bytes that start with {raw[:8]!r}")
    body, digest = raw[:-DIGEST], raw[-DIGEST:]
    if len(body) < HEAD.size or blake2b(body, digest_size=DIGEST).digest() != digest:
        fail(caller, name, "be whole and unchanged", "bytes whose checksum does not match", remedy=remedy)
    _, protocol, length = HEAD.unpack_from(body)
    if protocol > PROTOCOL:
        fail(caller, name, f"have a protocol number of at most {PROTOCOL}", protocol,
             remedy="A newer release of reprior wrote it; upgrade to read it")  # fmt: skip
    header = json.loads(body[HEAD.size : HEAD.size + length])
    if header["kind"] != kind:
        fail(caller, name, f"hold a {kind!r}", f"a {header['kind']!r}")
    fields, at = dict(header["fields"]), HEAD.size + length
    for key, dtype, shape in header["arrays"]:
        stored = np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        fields[key] = stored.astype(stored.dtype.newbyteorder("="))
        at += stored.nbytes
    return fields


def write_atomically(path: str | Path, data: bytes) -> None:
    """Put `data` at `path` so that whoever reads it, after any crash, finds all of it or what was there before."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":  # the new name must be on disk too
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
