"""Files are complete or absent, and a folder is written by one process at a time."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgewise.core.errors import EdgewiseError
from edgewise.core.files import folder_lock, write_atomically


def test_a_file_is_what_it_was_until_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "result.json"
    write_atomically(path, lambda new: new.write_text("old"))

    def fail(new: Path) -> None:
        new.write_text("ne")
        raise RuntimeError("killed here")

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
    write_atomically(path, lambda new: new.write_text("new"))
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "file" / "x.json", "cannot be written")):
        with pytest.raises(EdgewiseError, match=message):
            write_atomically(path, lambda new: new.write_text("x"))


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    read: list[str] = []
    reader.start()
    write_atomically(pipe, lambda new: new.write_text("through"))
    reader.join(10)
    assert read == ["through"] and pipe.is_fifo()


def test_a_pipe_that_nobody_reads_is_refused(tmp_path):
    os.mkfifo(tmp_path / "summary.json")
    with pytest.raises(EdgewiseError, match="a pipe that nobody reads"):
        write_atomically(tmp_path / "summary.json", lambda pipe: pipe.write_text("{}"), pipe_seconds=0.1)


PRINT = """
from edgewise.core.files import write_text
print("before")
write_text("/dev/stdout", "result\\n")
print("after")
"""


@pytest.mark.parametrize("to", ["a pipe", "a file", "a file by its name"])
def test_standard_output_takes_a_result_between_what_is_printed(tmp_path, to):
    """Whoever writes `--out /dev/stdout > file` has the printed table and the result in it."""
    file = tmp_path / "out.txt"
    code = PRINT.replace("/dev/stdout", str(file)) if to.endswith("name") else PRINT
    with file.open("w") as stdout:
        written = subprocess.PIPE if to == "a pipe" else stdout
        done = subprocess.run([sys.executable, "-u", "-c", code], stdout=written, text=True, check=True)
    assert (done.stdout or file.read_text()) == "before\nresult\nafter\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


HOLD = """
import sys, time
from edgewise.core.files import folder_lock
with folder_lock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_the_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    folder = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"locked\n"
        with pytest.raises(EdgewiseError, match="another process is writing to"), folder_lock(folder):
            pass
        with folder_lock(tmp_path / "another"):
            pass
        first.send_signal(signal.SIGKILL)
    with folder_lock(folder), folder_lock(folder):  # a command calls functions that lock the same folder
        pass
    with folder_lock(folder):
        pass


def test_another_thread_is_another_writer(tmp_path):
    refused: list[str] = []

    def write() -> None:
        try:
            with folder_lock(tmp_path):
                pass
        except EdgewiseError as error:
            refused.append(str(error))

    with folder_lock(tmp_path):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(10)
    assert len(refused) == 1


def test_a_folder_in_which_nothing_was_written_goes_away(tmp_path):
    with pytest.raises(RuntimeError), folder_lock(tmp_path / "new"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(EdgewiseError, match="is a file"), folder_lock(tmp_path / "file"):
        pass
