"""Values as bytes that say what they are: kind, protocol number, fields, arrays, checksum.

Layout, little-endian: ``b"reprior\\0"``, protocol (u16), header length (u32), header (JSON), arrays one after the
other, BLAKE2b-128 of all that. Readers of a later release keep reading every earlier protocol.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

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
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: str | Path, *, partial: Path | None = None, keep: int = 0) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` when the block ends well, and vanishes when it does not.

    A link is followed. What is no regular file (a pipe, a terminal) is written straight into. Several writers of one
    path never mix; the last one to finish wins. What killed writers left behind is cleared away.
    A caller that holds `path` alone may name the `partial` file, of which the first `keep` bytes, left by an earlier
    run, then stay.
    """
    with naming(path):
        if is_special(path):
            with open(path, "wb") as file:
                yield file
            return
        target = followed(path)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_away(target)
        temporary, handle = fresh(target) if partial is None else (partial, open_partial(partial))
        try:
            with open(handle, "r+b") as file:
                file.truncate(keep)
                file.seek(keep)
                yield file
                file.flush()
                if mode is not None and hasattr(os, "fchmod"):
                    os.fchmod(handle, mode)
                os.fsync(handle)
                if os.name == "posix":  # while it is locked; elsewhere an open file cannot be renamed
                    os.replace(temporary, target)
            if os.name != "posix":
                os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        if os.name == "posix":  # the new name must be on disk too
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name `path` in system errors that name no file, as pyarrow's on a full disk, or only a hidden one."""
    try:
        yield
    except OSError as error:
        if error.errno and (error.filename is None or Path(str(error.filename)).name.startswith(hidden(path, "").name)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def hidden(path: str | Path, suffix: str) -> Path:
    """Return the name of a helper file beside the file that `path` leads to."""
    target = Path(os.path.realpath(path))
    long = len(os.fsencode(target.name)) > 200  # file systems allow 255 bytes
    name = blake2b(os.fsencode(target.name), digest_size=16).hexdigest() if long else target.name
    return target.with_name(f".{name}.{suffix}")


def is_special(path: str | Path) -> bool:
    """Return whether something is at `path` that no file may take the place of: a pipe, a terminal, a device."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def followed(path: str | Path) -> Path:
    """Return where a path leads when links are followed, also to a file that is not there yet."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def fresh(target: Path) -> tuple[Path, int]:
    """Return a new file beside `target`, open and locked, with a name that no other process or thread has."""
    while True:
        name = hidden(target, f"{os.getpid()}-{os.urandom(6).hex()}.tmp")
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        if lock(handle, wait=True) and os.fstat(handle).st_nlink:
            return name, handle
        os.close(handle)  # between the two calls somebody took it for left behind


def open_partial(path: Path) -> int:
    """Return a file that an earlier run may have left, open; never through a link that somebody put there."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags, 0o666)


def clear_away(target: Path) -> None:
    """Remove what writers of `target` left behind when they were killed: no living writer holds its lock."""
    name = re.compile(re.escape(hidden(target, "").name) + r"\d+-[0-9a-f]{12}\.tmp")
    with suppress(OSError):  # whatever stands in the way of this is no reason not to write
        for left in [entry.path for entry in os.scandir(target.parent) if name.fullmatch(entry.name)]:
            with suppress(OSError):
                handle = os.open(left, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                try:
                    if lock(handle):
                        os.unlink(left)
                finally:
                    os.close(handle)


def lock(handle: int, *, wait: bool = False) -> bool:
    """Lock an open file until it is closed, by whatever end; return whether nobody else has it locked."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be removed anyway
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # a file system without locks
    return True
