"""The campaign's tools see broken promises: such a case fails."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.powerloss import LOSSES, Log, Loss
from campaign.program import Finished, Home, Snapshot
from campaign.sampler import Sampler
from campaign.shim import Shim, counted

if not sys.platform.startswith("linux"):
    pytest.skip("the campaign looks at processes through /proc", allow_module_level=True)

WRITES = """
import os, sys
os.chdir(sys.argv[1])
def put(name, data, flush):
    with open(name + ".new", "wb") as file:
        file.write(data)
        if flush:
            file.flush()
            os.fsync(file.fileno())
    os.rename(name + ".new", name)
    if flush:
        folder = os.open(".", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
put("careful", b"new" * 2000, True)
print("careful", flush=True)
put("careless", b"new" * 2000, False)
print("careless", flush=True)
"""
OPERATIONS = 8  # careful: create, write, fsync, rename, fsync; careless: create, write, rename


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "folder"
    place.mkdir()
    for name in ("careful", "careless"):
        (place / name).write_bytes(b"old" * 2000)
    return place


def write(folder: Path, shim: Shim) -> tuple[subprocess.CompletedProcess[bytes], tuple[int, int]]:
    counter = folder.parent / "counter"
    environment = {**os.environ, **shim.environment(counter)}
    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(folder)], env=environment, capture_output=True, check=False
    )
    return done, counted(counter)[:2]


@pytest.mark.parametrize("at", range(1, OPERATIONS + 1))
def test_a_kill_comes_before_the_operation(folder: Path, at: int) -> None:
    done, counts = write(folder, Shim((folder,), at, "kill"))
    assert (done.returncode, counts) == (-9, (at, 1))
    assert (done.stdout == b"careful\n") is (at > 5)
    assert ((folder / "careful").read_bytes()[:3] == b"new") is (at > 4)
    assert (folder / "careless").read_bytes()[:3] == b"old"


def test_a_torn_write_is_there_by_half(folder: Path) -> None:
    assert write(folder, Shim((folder,), 2, "torn"))[0].returncode == -9
    assert (folder / "careful.new").read_bytes() == b"new" * 1000


@pytest.mark.parametrize(("doing", "said"), [("EIO", b"Errno 5"), ("ENOSPC", b"Errno 28")])
def test_an_operation_fails(folder: Path, doing: str, said: bytes) -> None:
    done, counts = write(folder, Shim((folder,), 3, doing))  # type: ignore[arg-type]
    assert done.returncode == 1
    assert said in done.stderr
    assert counts == (3, 1)


def test_reads_fail_where_they_count(folder: Path) -> None:
    counter = folder.parent / "counter"
    program = f"open({str(folder / 'careful')!r}).read()"
    for reads, code in ((False, 0), (True, 1)):
        environment = {**os.environ, **Shim((folder,), 1, "EIO", reads=reads).environment(counter)}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
        assert done.returncode == code
        assert counted(counter)[2] == counted(counter)[0] == code


@pytest.mark.parametrize("loss", LOSSES)
def test_after_a_power_loss_what_was_flushed_is_there_and_what_was_not_may_be_gone(folder: Path, loss: Loss) -> None:
    kept = Snapshot(folder)
    log = Log.before(folder)
    assert write(folder, Shim((folder,), log=folder.parent / "log"))[0].returncode == 0
    log.read(folder.parent / "log")
    assert log.printed(len(log.entries)) == "careful\ncareless\n"
    careless = set()
    for count in range(len(log.entries) + 1):
        for seed in range(6):
            log.crash(kept.folder.with_name("folder.kept"), count, loss, random.Random(seed))
            careful = (folder / "careful").read_bytes()
            assert careful in (b"old" * 2000, b"new" * 2000), count
            if "careful\n" in log.printed(count):
                assert careful == b"new" * 2000
            careless.add((folder / "careless").read_bytes())
    whole = {b"old" * 2000, b"new" * 2000}
    if loss == "data and names":
        assert careless == {b"old" * 2000}
    else:  # the name is there, and the data are not: the effect of a rename without a flush
        assert careless - whole


def test_memory_of_the_whole_tree_is_seen() -> None:
    child = "import time; data = bytearray(b'x') * (40 << 20); print(1, flush=True); time.sleep(60)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    with Sampler(process.pid) as sampler:
        sampler.look()
    os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()
    assert 40 << 20 < sampler.peak < 120 << 20
    assert sampler.processes == 2


def test_memory_that_two_processes_share_counts_once() -> None:
    """As between `vfork` and the start of the other program: the child sleeps in its parent's memory for a second."""
    program = """
import ctypes, signal
data = bytearray(b"x") * (40 << 20)
libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
sleep = ctypes.cast(libc.usleep, ctypes.c_void_p)
top = (ctypes.addressof(stack) + len(stack)) & ~15
share = 0x100 | 0x4000  # CLONE_VM, CLONE_VFORK
print(1, flush=True)
libc.clone(sleep, ctypes.c_void_p(top), share | signal.SIGCHLD, ctypes.c_void_p(999_999))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    with Sampler(process.pid) as sampler:
        process.wait()
    process.stdout.close()
    assert sampler.processes == 2
    assert 40 << 20 < sampler.peak < 70 << 20


def test_faults_of_a_command_are_seen() -> None:
    def fault(code: int = 0, out: str = "", err: str = "", peak: int = 0, hung: bool = False) -> str | None:
        return Finished(("search",), code, out, err, peak, 1.0, hung).fault(limit=100)

    assert fault() is None
    assert fault(2, err="edge: there is no file") is None
    assert fault(1, out="nothing found") is None
    for broken in (
        fault(2, err="Traceback (most recent call last):\n  ..."), fault(2), fault(3, err="x"), fault(-11, err="x"),
        fault(out="a\x1b]0;x\x07"), fault(out="\x1b[1m"), fault(out="\u202e"), fault(err="a\x9bx"),
        fault(peak=101), fault(hung=True),
    ):  # fmt: skip
        assert broken is not None
        assert broken.startswith("`edge search` ")


def test_a_look_is_the_same_as_a_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for arguments in (("--version",), ("config", "show", "--json"), ("models", "show", "nothing")):
        started, looked = home.edge(*arguments, sampled=True), home.look(*arguments)
        assert (started.code, started.out, started.err) == (looked.code, looked.out, looked.err)
        assert started.peak > 1 << 20
