"""Where the processes of a node meet: nobody else may be taken in there, or turned away."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from memsvc.readers.place import SOCKET_PATH_BYTES, MeetingPlace, SharedPort
from memsvc.service.listening import ListenError
from tests.ports import free_port

TAKER = """
import sys
from memsvc.readers.place import SharedPort
from memsvc.service.listening import ListenError
while line := sys.stdin.readline():
    try:
        held = SharedPort(line.strip(), 0)
        print("held", flush=True)
    except ListenError:
        held = None
        print("refused", flush=True)
    sys.stdin.readline()
    if held:
        held.close()
    print("closed", flush=True)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, empty; of a short name, since sockets need that."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_copies_of_a_store_on_one_machine_do_not_share_a_folder(
    temporary: Path, tmp_path: Path
) -> None:
    """A replica, and what was restored to be looked at, have the id of the original. They would
    remove its socket, and its readers would pass writes on to them."""
    with closing(MeetingPlace(tmp_path / "a")) as first:
        Path(first.socket).touch()
        first.limits.touch()
        with closing(MeetingPlace(tmp_path / "b")) as second:
            assert second.socket != first.socket
        assert Path(first.socket).exists() and first.limits.exists()
    assert not list(temporary.iterdir())


def test_a_folder_that_is_in_use_is_left_alone(temporary: Path, tmp_path: Path) -> None:
    """The same path may be another directory in another container."""
    with closing(MeetingPlace(tmp_path)) as first:
        Path(first.socket).touch()
        with closing(MeetingPlace(tmp_path)) as second:
            assert second.folder != first.folder
        assert Path(first.socket).exists()


def test_what_a_killed_node_left_is_used_by_the_next(temporary: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys, tempfile; from pathlib import Path\n"
        "from memsvc.readers.place import MeetingPlace\n"
        "place = MeetingPlace(Path(sys.argv[1])); Path(place.socket).touch()\n"
        "os._exit(9)"
    )
    env = {**os.environ, "TMPDIR": str(temporary)}
    for _ in range(3):
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=env, check=False)
    (left,) = temporary.iterdir()
    assert list(left.iterdir())
    with closing(MeetingPlace(tmp_path)) as place:
        assert place.folder == left and not list(left.iterdir())


def test_a_folder_that_others_may_enter_is_not_used(temporary: Path, tmp_path: Path) -> None:
    with closing(MeetingPlace(tmp_path)) as place:
        usual = place.folder
    usual.mkdir()
    usual.chmod(0o755)
    with closing(MeetingPlace(tmp_path)) as place:
        assert place.folder != usual
        assert not place.folder.stat().st_mode & 0o077
    usual.rmdir()
    usual.symlink_to(tmp_path)
    with closing(MeetingPlace(tmp_path)) as place:
        assert place.folder != usual and place.folder.parent == temporary


def test_a_long_path_for_temporary_files_does_not_keep_a_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with closing(MeetingPlace(tmp_path)) as place:
        assert len(os.fsencode(place.socket)) <= SOCKET_PATH_BYTES
        with closing(socket.socket(socket.AF_UNIX)) as bound:
            bound.bind(place.socket)


def test_no_place_at_all_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", nowhere)
    with pytest.raises(ListenError, match="TMPDIR"):
        MeetingPlace(tmp_path)


def test_a_port_is_held_also_while_no_reader_listens(tmp_path: Path) -> None:
    """A reader that ended is replaced a moment later; a second node that starts just then must
    not get the port, with or without readers."""
    listen = f"127.0.0.1:{free_port()}"
    with closing(SharedPort(listen)) as held:
        with pytest.raises(ListenError):
            SharedPort(listen, 0)
        with closing(socket.socket()) as ordinary, pytest.raises(OSError):
            ordinary.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ordinary.bind(("127.0.0.1", held.port))
            ordinary.listen()
        with closing(socket.socket()) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reader.bind(("127.0.0.1", held.port))
            reader.listen()
            with closing(socket.create_connection(("127.0.0.1", held.port))):
                connection, _ = reader.accept()
                connection.close()  # first, so that the port has a connection in TIME_WAIT
    with closing(SharedPort(listen)):
        pass


def test_a_port_is_waited_for_that_readers_of_a_killed_node_still_have() -> None:
    """They end a moment after it: the next node must not be refused for good."""
    with closing(socket.socket()) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reader.bind(("127.0.0.1", 0))
        reader.listen()
        threading.Timer(0.3, reader.close).start()
        listen = f"127.0.0.1:{reader.getsockname()[1]}"
        with closing(SharedPort(listen, 60.0)) as held:
            assert held.listen == listen


def test_of_two_nodes_that_start_on_one_port_at_once_one_gets_it() -> None:
    listen = f"127.0.0.1:{free_port()}\n"
    with (
        subprocess.Popen(
            [sys.executable, "-c", TAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as one,
        subprocess.Popen(
            [sys.executable, "-c", TAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
    ):
        both = (one, other)

        def all_of(text: str) -> list[str]:
            for process in both:
                assert process.stdin
                process.stdin.write(text)
                process.stdin.flush()
            return [process.stdout.readline().strip() for process in both if process.stdout]

        for _ in range(300):
            assert sorted(all_of(listen)) == ["held", "refused"]
            assert all_of("\n") == ["closed", "closed"]
