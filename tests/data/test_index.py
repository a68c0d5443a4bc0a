import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from make_bad_files import Zoo, encode, photo, write_zoo

from project import listing
from project.data.reading import alone, index, isolated
from project.data.reading.image_file import MAX_PIXELS, decode
from project.data.reading.index import Checked, PathTable, check_files, class_folders, list_folder
from project.data.reading.isolated import shared, work_isolated


@pytest.fixture
def zoo(tmp_path: Path) -> tuple[Path, Zoo]:
    folder = tmp_path / "zoo"
    folder.mkdir()
    return folder, write_zoo(folder)


def write(folder: Path, *names: str) -> None:
    """Write images, no two alike, some time ago."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(photo(seed=sum(map(ord, name)), height=4, width=5)))
        os.utime(file, (1e9, 1e9))


def check(folder: Path, count: int, cache: Path | None = None) -> Checked:
    paths = PathTable.of(f"{i}.png" for i in range(count))
    return check_files(folder, paths, 3, MAX_PIXELS, cache)


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Asks how many files were decoded since it was last asked, in whatever process."""
    log = os.open(tmp_path / "looks", os.O_CREAT | os.O_APPEND | os.O_RDWR)

    def counting(*args):
        os.write(log, b".")
        return decode(*args)

    def count() -> int:
        found = os.fstat(log).st_size
        os.ftruncate(log, 0)
        return found

    monkeypatch.setattr(index, "decode", counting)
    return count


def alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie of somebody else's."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def in_a_fork(action: Callable[[], object]) -> int:
    with warnings.catch_warnings(action="ignore"):  # Python 3.12 on forks beside threads
        pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


# Listing


def test_all_files_are_listed_named_or_counted(zoo: tuple[Path, Zoo]) -> None:
    folder, files = zoo
    found = list_folder(folder)
    assert sorted(found.paths) == sorted([*files.right, *files.wrong])
    bad = dict(found.bad)
    assert bad.keys() == files.lost.keys()
    assert all(reason in bad[name] for name, reason in files.lost.items())
    assert found.left_out == files.left_out


def test_labels_are_places_of_class_folders(tmp_path: Path) -> None:
    write(tmp_path, "b/1.png", "a/2.png", "a/1.png", "c/x/1.png", ".hidden/1.png")
    (tmp_path / "empty").mkdir()
    assert class_folders(tmp_path) == ["a", "b", "c", "empty"]
    found = list_folder(tmp_path, ["c", "a", "none", "b"])
    assert list(found.paths) == ["c/x/1.png", "a/1.png", "a/2.png", "b/1.png"]
    assert found.labels.tolist() == [0, 1, 1, 3]
    assert found.bad == []


def test_the_order_does_not_depend_on_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *(f"{sub}{i}.png" for sub in ("", "x/", "y/z/") for i in range(12)))
    before = list(list_folder(tmp_path).paths)
    real = os.scandir

    class Reversed:
        def __init__(self, path: str) -> None:
            self.entries = list(real(path))[::-1]

        def __enter__(self) -> Iterator[os.DirEntry]:
            return iter(self.entries)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Reversed)
    assert list(list_folder(tmp_path).paths) == before


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a/1.png", "a/locked/1.png")
    real = os.scandir

    def scandir(path: str):  # a mode of 0 does not stop root
        if path.endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = list_folder(tmp_path, ["a"])
    assert list(found.paths) == ["a/1.png"]
    assert found.bad == [("a/locked", "this folder cannot be read: permission denied")]


def test_a_class_may_be_a_link_to_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/1.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").symlink_to(tmp_path / "elsewhere")
    assert class_folders(tmp_path / "data") == ["a"]
    assert list(list_folder(tmp_path / "data", ["a"]).paths) == ["a/1.png"]


def test_a_folder_of_two_classes_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a/1.png")
    (tmp_path / "b").symlink_to("a")
    found = list_folder(tmp_path, ["a", "b"])
    assert list(found.paths) == ["a/1.png"]
    assert found.bad == [("b", "this folder is also a, of another class")]


def test_images_beside_the_class_folders_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "a/1.png", "stray.png")
    assert list_folder(tmp_path, ["a"]).left_out == {listing.OUTSIDE: 1}


def test_an_empty_folder_has_no_images(tmp_path: Path) -> None:
    found = list_folder(tmp_path)
    assert (len(found.paths), found.labels.shape) == (0, (0,))
    assert check_files(tmp_path, found.paths, 3, MAX_PIXELS, None).ok.shape == (0,)


# The table of paths


def test_a_table_gives_paths_back_as_they_were() -> None:
    paths = ["a/1.png", "", "größe 猫.png", os.fsdecode(b"\xff.png")]
    table = PathTable.of(paths)
    assert list(table) == list(pickle.loads(pickle.dumps(table))) == paths
    assert table[-1] == paths[-1]
    with pytest.raises(IndexError):
        table[4]


@pytest.mark.slow
def test_index_and_check_take_120_bytes_a_file(tmp_path: Path) -> None:
    name = "class_{:03}/photograph_{:07}.jpeg"  # 34 bytes
    paths = PathTable.of(name.format(i % 7, i) for i in range(1000))
    checked = check_files(tmp_path, paths, 3, MAX_PIXELS, None)
    arrays = [value for value in vars(checked).values() if isinstance(value, np.ndarray)]
    labels = np.zeros(1000, np.int32)
    assert paths.nbytes + labels.nbytes + sum(a.nbytes for a in arrays) <= 120 * 1000
    assert all(array.base is None for array in arrays)  # nothing larger is held


# The check


def test_every_file_is_right_or_named(zoo: tuple[Path, Zoo]) -> None:
    folder, files = zoo
    found = list_folder(folder)
    checked = check_files(folder, found.paths, 3, MAX_PIXELS, None)
    for row, name in enumerate(found.paths):
        assert checked.ok[row] == (name in files.right), name
        if name in files.wrong:
            assert files.wrong[name] in checked.reasons[row]
        else:
            assert files.right[name].shape[:2] == (checked.height[row], checked.width[row]), name
            assert row not in checked.reasons
    names = list(found.paths)
    assert checked.grey[names.index("grey.jpg")]
    assert not checked.grey[names.index("plain.jpg")]


def test_copies_have_the_same_hash_and_others_not(tmp_path: Path) -> None:
    write(tmp_path, "0.png", "1.png")
    (tmp_path / "2.png").write_bytes((tmp_path / "0.png").read_bytes())
    first, other, copy = check(tmp_path, 3).content_hash
    assert first == copy != other


def test_absolute_paths_are_checked_where_they_are(tmp_path: Path) -> None:
    write(tmp_path, "far/1.png")
    paths = PathTable.of([str(tmp_path / "far" / "1.png")])
    assert check_files(tmp_path / "root", paths, 3, MAX_PIXELS, None).ok.tolist() == [True]


def test_what_is_right_is_remembered(tmp_path: Path, looks: Callable[[], int]) -> None:
    write(tmp_path, *(f"{i}.png" for i in range(5)))
    first = check(tmp_path, 5, tmp_path / "cache")
    assert looks() == 5
    second = check(tmp_path, 5, tmp_path / "cache")
    assert looks() == 0
    for name, array in vars(first).items():
        assert np.array_equal(array, getattr(second, name)), name


def test_only_a_changed_file_is_looked_at_again(tmp_path: Path, looks: Callable[[], int]) -> None:
    write(tmp_path, *(f"{i}.png" for i in range(5)))
    before = check(tmp_path, 5, tmp_path / "cache")
    looks()
    data = bytearray((tmp_path / "3.png").read_bytes())
    data[-6] ^= 1  # of the last part's name: as long as before, and bad
    (tmp_path / "3.png").write_bytes(data)
    os.utime(tmp_path / "3.png", ns=(10**18, 10**18 + 1))  # a nanosecond later
    after = check(tmp_path, 5, tmp_path / "cache")
    assert looks() == 1
    assert before.ok.all()
    assert list(after.reasons) == [3]


def test_a_file_that_may_still_change_within_the_tick_is_not_remembered(
    tmp_path: Path, looks: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "0.png")
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    for _ in range(2):
        check(tmp_path, 1, tmp_path / "cache")
        assert looks() == 1


def test_a_bad_file_is_looked_at_again(tmp_path: Path, looks: Callable[[], int]) -> None:
    (tmp_path / "0.png").write_bytes(b"GIF89a")
    os.utime(tmp_path / "0.png", (1e9, 1e9))
    for _ in range(2):
        assert list(check(tmp_path, 1, tmp_path / "cache").reasons) == [0]
        assert looks() == 1


def test_other_files_of_the_folder_are_not_forgotten(
    tmp_path: Path, looks: Callable[[], int]
) -> None:
    write(tmp_path, *(f"{i}.png" for i in range(5)))
    for names, decoded in (("012", 3), ("34", 2), ("01", 0), ("01234", 0)):
        paths = PathTable.of(f"{i}.png" for i in names)
        check_files(tmp_path, paths, 3, MAX_PIXELS, tmp_path / "cache")
        assert looks() == decoded, names


@pytest.mark.parametrize("damage", ["foreign", "cut", "flipped"])
def test_a_damaged_cache_is_replaced(tmp_path: Path, looks: Callable[[], int], damage: str) -> None:
    write(tmp_path, *(f"{i}.png" for i in range(3)))
    check(tmp_path, 3, tmp_path / "cache")
    (cache,) = (tmp_path / "cache").glob("*.checked")
    data = cache.read_bytes()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    cache.write_bytes({"foreign": b"hello", "cut": data[:-25], "flipped": changed}[damage])
    looks()
    assert check(tmp_path, 3, tmp_path / "cache").ok.all()
    assert looks() == 3
    assert cache.read_bytes() == data


def test_without_a_place_to_remember_it_works_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "0.png")
    (tmp_path / "cache").write_text("a file, so no folder can be here, not even for root")
    assert check(tmp_path, 1, tmp_path / "cache").ok.all()
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "cannot be written" in err


def test_a_full_disk_leaves_the_old_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "0.png", "1.png")
    check(tmp_path, 1, tmp_path / "cache")
    (cache,) = (tmp_path / "cache").glob("*.checked")
    before = cache.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert check(tmp_path, 2, tmp_path / "cache").ok.all()
    assert cache.read_bytes() == before
    assert list((tmp_path / "cache").glob("*.draft")) == []
    assert "No space left" in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes_share_the_work_of_one(tmp_path: Path, looks: Callable[[], int]) -> None:
    write(tmp_path, *(f"{i}.png" for i in range(40)))
    pids = [in_a_fork(lambda: check(tmp_path, 40, tmp_path / "cache")) for _ in range(2)]
    for pid in pids:
        os.waitpid(pid, 0)
    assert looks() == 40


def test_a_bar_is_drawn_on_a_terminal_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "0.png")
    check(tmp_path, 1)
    monkeypatch.setattr(alone, "_BAR_AFTER", -1.0)
    check(tmp_path, 1)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    check(tmp_path, 1)
    assert "Checking images" in capsys.readouterr().err


# Processes


@pytest.mark.parametrize("count", [20, pytest.param(900, marks=pytest.mark.slow)])
def test_a_decoder_that_dies_costs_its_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    image = encode(photo(height=4, width=5))
    for i in range(count):
        (tmp_path / f"{i}.png").write_bytes(b"deadly" if i in (3, 4, 17) else image)

    def deadly(data: bytes, *args):
        if data == b"deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(data, *args)

    monkeypatch.setattr(index, "decode", deadly)
    checked = check(tmp_path, count)
    reason = "it takes the decoder down (killed, perhaps for want of memory)"
    assert checked.reasons == dict.fromkeys((3, 4, 17), reason)
    assert checked.ok.sum() == count - 3


def test_a_crash_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def crash(_: int) -> None:
        os.write(2, b"free(): invalid pointer")
        ctypes.string_at(0)

    before = faulthandler.is_enabled()
    with open(tmp_path / "trace", "w") as trace:  # pytest's own goes to a copy of stderr, too
        faulthandler.enable(file=trace)
        try:
            reasons = work_isolated(crash, np.arange(1), lambda _: None)
        finally:
            faulthandler.enable(file=sys.__stderr__) if before else faulthandler.disable()
    assert reasons == {0: "it takes the decoder down (SIGSEGV)"}
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "trace").read_text() == ""


def test_a_process_that_is_killed_once_costs_no_file() -> None:
    tries = shared(10, np.int64)

    def work(row: int) -> None:
        tries[row] += 1
        if row == 5 and tries[row] == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    assert work_isolated(work, np.arange(10), lambda _: None) == {}
    assert tries.tolist() == [1, 1, 1, 1, 1, 2, 1, 1, 1, 1]


@pytest.mark.slow
def test_a_row_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "_PATIENCE", 0.3)
    reasons = work_isolated(
        lambda row: time.sleep(60) if row == 1 else None, np.arange(3), lambda _: None
    )
    assert list(reasons) == [1]
    assert "seconds" in reasons[1]


def test_every_row_is_worked_on_once_and_reasons_come_back() -> None:
    seen = shared(5000, np.int64)

    def work(row: int) -> str | None:
        seen[row] += 1
        return "é" * 5000 if row % 7 == 0 else None  # more than a pipe holds

    rows = np.arange(0, 5000, 2)
    assert work_isolated(work, rows, lambda _: None) == dict.fromkeys(
        range(0, 5000, 14), "é" * 5000
    )
    assert seen.tolist() == [1, 0] * 2500


def test_a_bug_is_raised_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in <lambda>.*ZeroDivisionError"):
        work_isolated(lambda row: str(1 // row), np.arange(1), lambda _: None)


def test_the_signals_of_a_terminal_and_a_scheduler_do_not_reach_workers() -> None:
    def work(_: int) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), number)

    assert work_isolated(work, np.arange(3), lambda _: None) == {}


def test_an_interrupt_leaves_no_process() -> None:
    pids = shared(1000, np.int64)

    def work(row: int) -> None:
        pids[row] = os.getpid()
        time.sleep(0.02)

    def interrupt(done: int) -> None:
        if done > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_isolated(work, np.arange(1000), interrupt)
    for pid in set(pids.tolist()) - {0}:
        with pytest.raises(ProcessLookupError):  # not even a zombie
            os.kill(pid, 0)


@pytest.mark.slow
def test_what_was_checked_before_an_interrupt_is_remembered(
    tmp_path: Path, looks: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *(f"{i}.png" for i in range(30)))
    counting = index.decode

    def slowly(*args):
        time.sleep(0.02)
        return counting(*args)

    def interrupt(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    monkeypatch.setattr(index, "decode", slowly)
    with monkeypatch.context() as patch:
        patch.setattr(index, "bar", lambda *_: nullcontext(interrupt))
        with pytest.raises(KeyboardInterrupt):
            check(tmp_path, 30, tmp_path / "cache")
    first = looks()
    check(tmp_path, 30, tmp_path / "cache")
    assert 0 < first < 30
    assert looks() <= 31 - first  # one was being decoded


def test_workers_do_not_outlive_their_parent() -> None:
    pids = shared(1000, np.int64)

    def work(row: int) -> None:
        pids[row] = os.getpid()
        time.sleep(0.02)

    parent = in_a_fork(lambda: work_isolated(work, np.arange(1000), lambda _: None))
    deadline = time.monotonic() + 20
    while not pids.any() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    while any(map(alive, set(pids.tolist()) - {0})) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pids.any()
    assert not any(map(alive, set(pids.tolist()) - {0}))


def test_a_worker_reads_the_tables_without_a_copy() -> None:
    table = PathTable.of(f"class/{i:07}.png" for i in range(100_000))
    read, write_end = os.pipe()

    def look() -> None:
        def own() -> int:
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

        before = own()
        for row in range(len(table)):
            table[row]
        os.write(write_end, str(own() - before).encode())

    os.waitpid(in_a_fork(look), 0)
    kilobytes = int(os.read(read, 100))
    os.close(read)
    os.close(write_end)
    assert kilobytes < 0.25 * table.nbytes / 1024
