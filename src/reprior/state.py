"""Values as bytes that say what they are: kind, protocol number, fields, arrays, checksum.

Layout, little-endian: ``b"reprior\\0"``, protocol (u16), header length (u32), header (JSON), arrays one after the
other, BLAKE2b-128 of all that. Readers of a later release keep reading every earlier protocol. The checksum finds
damage. It stops nobody who writes bytes on purpose, so nothing in them is believed: `decode` holds the header to
plain numbers, text and lists and the arrays to the bytes that are there, and every reader checks what it takes. With
a `key` the checksum is keyed BLAKE2b: then only who has the key can write bytes that are accepted.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn, Self

import numpy as np

from reprior._check import fail

PROTOCOL = 1
MAGIC = b"reprior\0"
HEAD = struct.Struct("<8sHI")
DIGEST = 16
MOST_HEADER = 1 << 20  # bytes of a header that no array stands behind: keys and names come with a state each
DTYPES = frozenset(np.dtype(kind).newbyteorder("<").str for kind in "bBhHiIlLqQefd?")
SPOILT = "Read it again from where it was stored; it cannot be repaired"
Key = bytes | None


def checksum(body: Any, key: Key) -> bytes:
    """Return the checksum of `body`, keyed if there is a key of 1 to 64 bytes."""
    if key is not None and not (isinstance(key, bytes) and 0 < len(key) <= 64):
        got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        fail("reprior", "key", "be 1 to 64 bytes, best 32 random ones", got)
    return blake2b(body, digest_size=DIGEST, key=key or b"").digest()


def encode(kind: str, fields: Mapping[str, Any], key: Key = None) -> bytes:
    """Return `fields` (JSON values, arrays, and bytes, which are read back as arrays) as bytes of the given kind.

    >>> decode(encode("note", {"n": 3, "x": np.ones(2)}), "note", "example")
    {'n': 3, 'x': array([1., 1.])}
    """
    fields = {name: np.frombuffer(x, np.uint8) if isinstance(x, bytes) else x for name, x in fields.items()}
    arrays = {name: x for name, x in fields.items() if isinstance(x, np.ndarray)}
    arrays = {name: x.astype(x.dtype.newbyteorder("<"), copy=False) for name, x in arrays.items()}
    header = {
        "kind": kind,
        "fields": {name: value for name, value in fields.items() if name not in arrays},
        "arrays": [[name, x.dtype.str, list(x.shape)] for name, x in arrays.items()],
    }
    text = json.dumps(header, separators=(",", ":"), allow_nan=False, default=np.generic.item).encode()
    body = HEAD.pack(MAGIC, PROTOCOL, len(text)) + text + b"".join(x.tobytes() for x in arrays.values())
    return body + checksum(body, key)


def whole_number(digits: str) -> int:
    """Return a whole number; none beyond 64 bits, which no array can hold, and none that JSON has not, as NaN."""
    if len(digits) > 20:
        raise ValueError(digits[:20])
    return int(digits)


def opened(data: Any, caller: str, name: str, key: Key) -> tuple[dict[str, Any], memoryview]:
    """Return the header and the bytes of the arrays behind it, after all that can be checked without reading those."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        fail(caller, name, "be bytes", type(data).__name__)
    raw = memoryview(data).cast("B") if memoryview(data).contiguous else memoryview(bytes(data))
    if raw[: len(MAGIC)] != MAGIC:
        fail(caller, name, "be bytes written by reprior", f"{len(raw)} bytes that start with {bytes(raw[:8])!r}")
    body, digest = raw[:-DIGEST], raw[-DIGEST:]
    if len(body) < HEAD.size or not compare_digest(checksum(body, key), bytes(digest)):
        others = " under this key" if key is not None else ", or that were written with a key"
        fail(caller, name, "be whole and unchanged", f"bytes whose checksum does not match{others}", remedy=SPOILT)
    _, protocol, length = HEAD.unpack_from(body)
    if protocol > PROTOCOL:
        fail(caller, name, f"have a protocol number of at most {PROTOCOL}", protocol,
             remedy="A newer release of reprior wrote it; upgrade to read it")  # fmt: skip
    behind = len(body) - HEAD.size - length
    if behind < 0 or length > MOST_HEADER + behind:
        refuse(caller, name, f"a header of {length} bytes in {len(raw)}")
    try:
        header = json.loads(bytes(body[HEAD.size : HEAD.size + length]), parse_constant=whole_number,
                            parse_int=whole_number)  # fmt: skip
    except (ValueError, RecursionError):
        refuse(caller, name, "a header that is not JSON")
    shape = {"kind": str, "fields": dict, "arrays": list}
    if not isinstance(header, dict) or any(not isinstance(header.get(part), kind) for part, kind in shape.items()):
        refuse(caller, name, "a header without kind, fields and arrays")
    return header, body[HEAD.size + length :]


def refuse(caller: str, name: str, got: object) -> NoReturn:
    """Refuse bytes whose checksum is right and whose content `encode` cannot have written."""
    fail(caller, name, "hold what reprior writes", got, remedy=SPOILT)


def kind_of(data: Any, caller: str = "load", *, name: str = "data", key: Key = None) -> str:
    """Return the kind of value that bytes hold, as `encode` wrote it."""
    return str(opened(data, caller, name, key)[0]["kind"])


def decode(data: Any, kind: str, caller: str, *, name: str = "data", key: Key = None) -> dict[str, Any]:
    """Return the fields that `encode` wrote with this kind; types and sizes are checked before memory is taken."""
    header, behind = opened(data, caller, name, key)
    if header["kind"] != kind:
        fail(caller, name, f"hold a {kind!r}", f"a {header['kind']!r}")
    fields, at = dict(header["fields"]), 0
    for entry in header["arrays"]:
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and entry[0] not in fields):
            refuse(caller, name, f"the array {str(entry)[:60]}")
        stored = read_array(behind[at:], entry[1], entry[2], caller, name)
        fields[entry[0]] = stored.astype(stored.dtype.newbyteorder("="))
        at += stored.nbytes
    if at != len(behind):
        refuse(caller, name, f"{len(behind) - at} bytes too many")
    return fields


def read_array(data: memoryview, dtype: Any, shape: Any, caller: str, name: str) -> np.ndarray[Any, Any]:
    """Return the array that `data` begins with, once its type and shape are checked; it is not copied."""
    whole = isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    if not isinstance(dtype, str) or dtype not in DTYPES or not whole:
        refuse(caller, name, f"an array of type {str(dtype)[:20]!r} and shape {str(shape)[:60]}")
    count, size = math.prod(shape), np.dtype(dtype).itemsize
    if count * size > len(data):
        refuse(caller, name, f"an array of {count * size} bytes where {len(data)} are left")
    try:
        return np.frombuffer(data, dtype, count).reshape(shape)
    except ValueError:  # sides too long for an array, though one of them is 0
        refuse(caller, name, f"an array of shape {str(shape)[:60]}")


def take(fields: Mapping[str, Any], name: str, kinds: Any, caller: str, shape: tuple[int | None, ...] = ()) -> Any:
    """Return a field if it is of one of `kinds`; an array must be finite and have this `shape`, None for any length."""
    value = fields.get(name)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not issubclass(bool, kinds)):
        refuse(caller, "data", f"{name!r} as {type(value).__name__}")
    if isinstance(value, np.ndarray):
        fits = value.ndim == len(shape) and all(m is None or m == n for m, n in zip(shape, value.shape, strict=True))
        if not fits or not np.isfinite(value).all():
            refuse(caller, "data", f"{name!r} of shape {value.shape}" + ", not all of it finite" * fits)
    if isinstance(value, float) and not math.isfinite(value):
        refuse(caller, "data", f"{name!r} = {value}")
    return value


def write_atomically(path: str | Path, data: bytes) -> None:
    """Put `data` at `path` so that whoever reads it, after any crash, finds all of it or what was there before."""
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` when the block ends well, and vanishes when it does not.

    A link is followed. What is no regular file (a pipe, a terminal) is written straight into. Several writers of one
    path never mix; the last one to finish wins. What killed writers left behind is cleared away.
    """
    if not isinstance(path, (str, os.PathLike)):
        fail("save", "path", "be the path of a file", "None" if path is None else f"a {type(path).__name__}",
             remedy="Name a file, as 'model.reprior'")  # fmt: skip
    with naming(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "A folder; name a file in it", str(path))
        if is_special(path):
            with open(path, "wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))  # also of a link to a file that is not there yet
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_away(target)
        temporary, handle = fresh(target)
        try:
            with open(handle, "r+b") as file:
                yield file
                file.flush()
                if target.exists() and hasattr(os, "fchmod"):
                    os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
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


def read_saved(path: Any, caller: str) -> bytes:
    """Return the bytes of a file that `save` wrote, or bytes as they are."""
    if isinstance(path, (bytes, bytearray, memoryview)):
        return bytes(path)
    if not isinstance(path, (str, Path)):
        fail(caller, "path", "be the path of a file, or bytes", f"a {type(path).__name__}")
    if Path(path).is_dir():
        fail(caller, "path", "be a file that `save` wrote", f"the folder {path}")
    return Path(path).read_bytes()


class Saved:
    """A value of some `KIND` that is kept in one file; `fields` are what bytes hold, and `from_fields` reads them."""

    __slots__ = ()
    KIND: ClassVar[str]
    fields: Callable[..., dict[str, Any]]
    from_fields: Callable[..., Any]

    def to_bytes(self, key: Key = None) -> bytes:
        """Return it as bytes for `from_bytes`; later versions can read them.

        Parameters
        ----------
        key : bytes, optional
            A secret of 1 to 64 bytes that signs the bytes. `load` with this key then refuses bytes without its
            signature.
        """
        return encode(self.KIND, self.fields(f"{type(self).__name__}.to_bytes"), key)

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None) -> Self:
        """Return what `to_bytes` wrote; bytes that are damaged, forged or too new raise `InputError`.

        Parameters
        ----------
        data : bytes
            What `to_bytes` returned.
        key : bytes, optional
            The key that signed them.
        """
        caller = f"{cls.__name__}.from_bytes"
        return cls.from_fields(decode(data, cls.KIND, caller, key=key), caller)  # type: ignore[no-any-return]

    @classmethod
    def load(cls, path: str | Path, key: Key = None) -> Self:
        """Return what `save` wrote to a file; any other file raises `InputError`.

        Parameters
        ----------
        path : str or Path
            The file.
        key : bytes, optional
            The key that signed it.
        """
        return cls.from_bytes(read_saved(path, f"{cls.__name__}.load"), key)

    def save(self, path: str | Path, key: Key = None) -> None:
        """Write it to one file, which `reprior.load` reads. A crash never leaves half a file.

        Parameters
        ----------
        path : str or Path
            The file.
        key : bytes, optional
            As in `to_bytes`.
        """
        write_atomically(path, self.to_bytes(key))


def hidden(path: str | Path, suffix: str) -> Path:
    """Return the name of a helper file beside the file that `path` leads to."""
    target = Path(os.path.realpath(path))
    full = os.fsencode(target.name)
    name = blake2b(full, digest_size=16).hexdigest() if len(full) > 200 else target.name  # file systems allow 255 bytes
    return target.with_name(f".{name}.{suffix}")


def is_special(path: str | Path) -> bool:
    """Return whether something is at `path` that no file may take the place of: a pipe, a terminal, a device."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def fresh(target: Path) -> tuple[Path, int]:
    """Return a new file beside `target`, open and locked, with a name that no other process or thread has."""
    while True:
        name = hidden(target, f"{os.getpid()}-{os.urandom(6).hex()}.tmp")
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        if lock(handle, wait=True) and os.fstat(handle).st_nlink:
            return name, handle
        os.close(handle)  # between the two calls somebody took it for left behind


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
