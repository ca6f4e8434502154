"""Files that appear whole or not at all, whoever else writes them and whatever is at their place."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest

from reprior.state import whole_file, write_atomically


def test_threads_that_save_one_path_never_mix(tmp_path) -> None:
    path, faults = tmp_path / "state", []

    def save(letter: bytes) -> None:
        try:
            for _ in range(40):
                write_atomically(path, letter * 200_000)
        except OSError as error:
            faults.append(error)

    threads = [threading.Thread(target=save, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert path.read_bytes() in {letter * 200_000 for letter in (b"a", b"b", b"c")}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="needs kill -9")
def test_what_a_killed_writer_left_is_cleared_by_the_next_one_and_a_living_one_is_left_alone(tmp_path) -> None:
    path = tmp_path / "state"
    code = "import os, sys\nfrom reprior.state import whole_file\nwith whole_file(sys.argv[1]): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".tmp")
    (tmp_path / ".state.notes.tmp").write_text("a file of the user's own")
    with whole_file(path) as file:
        file.write(b"slow")
        write_atomically(path, b"quick")
    assert path.read_bytes() == b"slow"  # the last to finish wins
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".state.notes.tmp", path]


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    for name in ("there", "new"):
        (tmp_path / name).symlink_to(tmp_path / "real" / name)
    (tmp_path / "real" / "there").write_bytes(b"old")
    for name in ("there", "new"):
        write_atomically(tmp_path / name, b"text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "real" / name).read_bytes() == b"text"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="loop"):
        write_atomically(tmp_path / "loop", b"text")
    assert (tmp_path / "loop").is_symlink()
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        write_atomically(tmp_path / "real", b"text")
    assert sorted(p.name for p in (tmp_path / "real").iterdir()) == ["new", "there"]


@pytest.mark.skipif(os.name != "posix", reason="needs FIFOs and terminals")
@pytest.mark.parametrize("kind", ["fifo", "terminal", "link to a fifo"])
def test_what_is_no_regular_file_is_written_into(tmp_path, kind) -> None:
    if kind == "terminal":
        reading, writing = os.openpty()
        path = os.ttyname(writing)
    else:
        path = str(tmp_path / "fifo")
        os.mkfifo(path)
        if kind != "fifo":
            (tmp_path / "link").symlink_to(path)
            path = str(tmp_path / "link")
        reading, writing = os.open(path, os.O_RDONLY | os.O_NONBLOCK), -1
    before = os.lstat(path)
    write_atomically(path, b"text")
    assert os.read(reading, 100) == b"text"
    after = os.lstat(path)
    assert (stat.S_IFMT(after.st_mode), after.st_ino) == (stat.S_IFMT(before.st_mode), before.st_ino)
    for handle in {reading, writing} - {-1}:
        os.close(handle)


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_permissions_stay_and_names_may_be_long(tmp_path) -> None:
    path = tmp_path / ("ä" * 127)
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "no").write_text("")
    with pytest.raises(OSError, match="/no'"):
        write_atomically(tmp_path / "no" / "where", b"")
