import contextlib
import errno
import os
import pickle
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from project.callbacks import DurableCheckpoints
from project.mistakes import UserError

MODULE = "project.callbacks.durable_checkpoints"


def state(step, size=1000):
    return {"step": step, "weights": torch.full((size,), float(step))}


def step_of(file):
    found = torch.load(file, weights_only=True)
    assert bool((found["weights"] == found["step"]).all())
    return found["step"]


@pytest.fixture
def io():
    return DurableCheckpoints()


@pytest.fixture
def folder(tmp_path):
    """A folder with ``last.ckpt`` of step 1."""
    DurableCheckpoints().save_checkpoint(state(1), tmp_path / "run" / "last.ckpt")
    return tmp_path / "run"


def assert_as_before(folder):
    assert [file.name for file in folder.iterdir()] == ["last.ckpt"]
    assert step_of(folder / "last.ckpt") == 1


def leftover(folder, pid, host=None, age=0.0):
    """What a process that was killed while it saved has left."""
    module = sys.modules[MODULE]
    file = folder / f".saving-0123abcd-{pid}-{host or module._host()}.part"
    file.write_bytes(b"half")
    os.utime(file, (time.time() - age, time.time() - age))
    return file


@pytest.fixture
def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@contextlib.contextmanager
def nobody_else():
    """Be a user who is not root, to whom permissions apply."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB, mounted at a folder; gone after the test."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    try:
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("cannot mount here")
    except FileNotFoundError:
        pytest.skip("there is no mount")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


# Saving


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty")  # it goes on in it
def test_a_run_leaves_whole_checkpoints_and_nothing_else(
    make_trainer, make_module, data, tmp_path, io
):
    checkpoint = ModelCheckpoint(tmp_path / "run", monitor="val/loss", save_last=True, save_top_k=2)
    trainer = make_trainer(checkpoint, enable_checkpointing=True, plugins=[io], max_epochs=4)
    trainer.fit(make_module(), data)
    assert trainer.strategy.checkpoint_io is io
    names = {Path(file).name for file in (*checkpoint.best_k_models, "last.ckpt")}
    assert len(names) == 3
    assert {file.name for file in (tmp_path / "run").iterdir()} == names
    resumed = make_trainer(checkpoint, enable_checkpointing=True, plugins=[io], max_epochs=5)
    resumed.fit(make_module(), data, ckpt_path=tmp_path / "run" / "last.ckpt", weights_only=True)
    assert resumed.global_step == 20


def test_it_is_on_the_disk_before_it_gets_its_name(monkeypatch, folder, io):
    calls = []

    def note(name, function):
        def noted(first, *rest):
            kind = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            calls.append((name, Path(kind).suffix))
            return function(first, *rest)

        return noted

    monkeypatch.setattr(os, "fsync", note("sync", os.fsync))
    monkeypatch.setattr(os, "replace", note("replace", os.replace))
    is_intact = sys.modules[MODULE].is_intact
    monkeypatch.setattr(sys.modules[MODULE], "is_intact", note("check", is_intact))
    io.save_checkpoint(state(2), folder / "last.ckpt")
    assert calls == [("sync", ".part"), ("check", ".part"), ("replace", ".part"), ("sync", "")]


def test_saving_takes_no_second_copy_in_memory(tmp_path, io):
    memory = Path("/proc/self/clear_refs")
    if not memory.exists():
        pytest.skip("needs /proc")

    def peak():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    large = {"weights": torch.rand(24_000_000), "optimizer": {"momentum": torch.rand(8_000_000)}}
    io.save_checkpoint(state(1), tmp_path / "warm.ckpt")
    memory.write_text("5")  # the peak starts anew from what is used now
    before = peak()
    io.save_checkpoint(large, tmp_path / "last.ckpt")
    grown = peak() - before
    assert (tmp_path / "last.ckpt").stat().st_size > 128e6
    assert grown < 0.1 * 128e6


def test_neither_memory_nor_tmpdir_is_needed_beside_the_folder(monkeypatch, folder, io):
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", None)
    io.save_checkpoint(state(2), folder / "last.ckpt")
    assert step_of(folder / "last.ckpt") == 2


def test_the_name_may_be_as_long_as_names_can_be(folder, io):
    file = folder / ("x" * 250 + ".ckpt")
    io.save_checkpoint(state(2), file)
    assert step_of(file) == 2


def test_checksums_are_written_also_where_they_are_switched_off(folder, io):
    torch.serialization.set_crc32_options(False)
    try:
        io.save_checkpoint(state(2), folder / "last.ckpt")
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert step_of(folder / "last.ckpt") == 2


def test_saves_in_the_background_are_as_durable(make_trainer, make_module, data, tmp_path, io):
    checkpoint = ModelCheckpoint(tmp_path / "run", save_last=True)
    background = AsyncCheckpointIO(io)
    trainer = make_trainer(checkpoint, enable_checkpointing=True, plugins=[background])
    trainer.fit(make_module(), data)
    assert trainer.strategy.checkpoint_io.checkpoint_io is io
    assert io._folders == {tmp_path / "run"}
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == 8


# Links


@pytest.mark.parametrize("target", ["best.ckpt", "last.ckpt", "gone.ckpt"])
def test_a_link_is_replaced_and_what_it_leads_to_stays(target, tmp_path, io):
    io.save_checkpoint(state(1), tmp_path / "best.ckpt")
    os.symlink(target, tmp_path / "last.ckpt")
    io.save_checkpoint(state(2), tmp_path / "last.ckpt")
    assert not (tmp_path / "last.ckpt").is_symlink()
    assert step_of(tmp_path / "last.ckpt") == 2
    assert step_of(tmp_path / "best.ckpt") == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("monitor", [None, "val/loss"])
@pytest.mark.parametrize("save_top_k", [-1, 0, 1])
def test_last_as_a_link_leads_to_the_newest_file(
    monitor, save_top_k, make_trainer, make_module, data, tmp_path, io
):
    checkpoint = ModelCheckpoint(
        tmp_path / "run", monitor=monitor, save_last="link", save_top_k=save_top_k
    )
    trainer = make_trainer(checkpoint, enable_checkpointing=True, plugins=[io])
    trainer.fit(make_module(), data)
    last = tmp_path / "run" / "last.ckpt"
    assert last.is_symlink() == (save_top_k != 0)
    assert last.resolve().is_file()
    assert torch.load(last, weights_only=True)["global_step"] == 8


def test_the_folder_may_be_a_link(tmp_path, io):
    (tmp_path / "large_disk").mkdir()
    os.symlink("large_disk", tmp_path / "run")
    io.save_checkpoint(state(2), tmp_path / "run" / "last.ckpt")
    assert step_of(tmp_path / "large_disk" / "last.ckpt") == 2


# Failing


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, r"disk is full; 5\.\d KB needed, [\d,.]+ MB free on the disk"),
        (errno.EDQUOT, r"quota there is used up; 5\.\d KB needed, [\d,.]+ MB free on the disk"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_disk_refuses_is_told_and_the_old_file_stays(code, words, monkeypatch, folder, io):
    def fail(descriptor):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(UserError, match=words) as caught:
            io.save_checkpoint(state(2), folder / "last.ckpt")
    first, second, third = str(caught.value).splitlines()
    assert first.startswith(f"Checkpoint {folder / 'last.ckpt'} is not saved: ")
    assert second == "The last.ckpt that was there before is untouched."
    assert "--trainer.default_root_dir DIR" in third
    assert_as_before(folder)


@pytest.mark.parametrize("limit", [0, 1000, 300_000])
def test_a_write_that_fails_inside_torch_is_told(limit, folder, io):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(UserError, match=r"may not be that large.*; 4\.0 MB needed"):
            io.save_checkpoint(state(2, 1_000_000), folder / "last.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_as_before(folder)


def test_a_full_disk_is_told_and_freed_again(small_disk, io):
    io.save_checkpoint(state(1), small_disk / "last.ckpt")
    with pytest.raises(UserError, match=r"disk is full; 8\.0 MB needed, 4\.[012] MB free"):
        io.save_checkpoint(state(2, 2_000_000), small_disk / "last.ckpt")
    assert_as_before(small_disk)
    io.save_checkpoint(state(3), small_disk / "last.ckpt")
    assert step_of(small_disk / "last.ckpt") == 3


def test_a_full_disk_ends_a_run_with_the_last_checkpoint_intact(
    make_trainer, make_module, data, small_disk, io
):
    class Growing(make_module):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["ballast"] = torch.zeros(self.current_epoch * 700_000)

    checkpoint = ModelCheckpoint(small_disk / "run", filename="all", enable_version_counter=False)
    trainer = make_trainer(checkpoint, enable_checkpointing=True, plugins=[io], max_epochs=9)
    with pytest.raises(UserError, match="disk is full"):
        trainer.fit(Growing(), data)
    (file,) = (small_disk / "run").iterdir()
    assert torch.load(file, weights_only=True)["epoch"] == 1


def test_a_read_only_disk_is_told_also_to_root(small_disk, io):
    io.save_checkpoint(state(1), small_disk / "last.ckpt")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for file in (small_disk / "last.ckpt", small_disk / "new" / "last.ckpt"):
        with pytest.raises(UserError, match=r"mounted read-only\.\n"):
            io.save_checkpoint(state(2), file)
    with pytest.raises(UserError, match="cannot be removed: the disk is mounted read-only"):
        io.remove_checkpoint(small_disk / "last.ckpt")
    assert_as_before(small_disk)


def test_a_folder_without_permission_is_told(io):
    # Not below tmp_path, into which pytest lets nobody but the user who runs it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        io.save_checkpoint(state(1), folder / "last.ckpt")
        folder.chmod(0o555)
        with nobody_else():
            for file in (folder / "last.ckpt", folder / "new" / "last.ckpt"):
                with pytest.raises(UserError, match="this user may not write there"):
                    io.save_checkpoint(state(2), file)
        assert_as_before(folder)
        folder.chmod(0o755)


def test_a_folder_that_is_gone_is_told_and_not_made_anew(folder, io):
    io.save_checkpoint(state(1), folder / "last.ckpt")
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"its folder is gone: .*\nBring it back") as caught:
        io.save_checkpoint(state(2), folder / "last.ckpt")
    assert "untouched" not in str(caught.value)
    assert not folder.exists()


def test_a_folder_that_goes_while_it_is_written_to_is_told(monkeypatch, folder, io):
    fsync = os.fsync

    def lose(descriptor):
        fsync(descriptor)
        shutil.rmtree(folder)

    monkeypatch.setattr(os, "fsync", lose)
    with pytest.raises(UserError, match="its folder is gone"):
        io.save_checkpoint(state(2), folder / "last.ckpt")


@pytest.mark.parametrize("name", ["last.ckpt/new.ckpt", "."])
def test_a_path_that_cannot_be_a_file_is_told(name, folder, io):
    with pytest.raises(UserError, match="is not saved"):
        io.save_checkpoint(state(2), folder / name)
    assert_as_before(folder)


def test_what_reads_back_damaged_does_not_replace_the_old_file(monkeypatch, folder, io):
    save = torch.save

    def damaging(checkpoint, file):
        save(checkpoint, file)
        file.seek(1000)
        file.write(b"\xff\xff")

    monkeypatch.setattr(torch, "save", damaging)
    with pytest.raises(UserError, match="reads back damaged"):
        io.save_checkpoint(state(2), folder / "last.ckpt")
    assert_as_before(folder)


class Interrupting:
    def __reduce__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("content", "error"),
    [(Interrupting(), KeyboardInterrupt), (lambda: 0, (pickle.PicklingError, AttributeError))],
)
def test_other_errors_stay_what_they_are(content, error, folder, io):
    with pytest.raises(error):
        io.save_checkpoint({**state(2), "content": content}, folder / "last.ckpt")
    assert_as_before(folder)


def test_an_interrupt_inside_a_write_stays_one(monkeypatch, folder, io):
    class Interrupted:
        def __init__(self, file):
            self.file, self.flush = file, file.flush

        def write(self, data):
            if self.file.tell() > 2000:
                raise KeyboardInterrupt
            return self.file.write(data)

    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: save(content, Interrupted(file)))
    with pytest.raises(KeyboardInterrupt):
        io.save_checkpoint(state(2, 100_000), folder / "last.ckpt")
    assert_as_before(folder)


# Leftovers


def test_leftovers_of_dead_processes_are_removed(folder, io, dead_pid):
    leftover(folder, dead_pid)
    leftover(folder, os.getpid())  # of a process that had this one's id, e.g. 1 in a container
    leftover(folder, os.getppid(), age=2 * 24 * 3600)  # the id went to another process
    leftover(folder, dead_pid, host="0-elsewhere", age=2 * 24 * 3600)
    io.save_checkpoint(state(1), folder / "last.ckpt")
    assert_as_before(folder)


def test_what_others_may_still_write_to_stays(folder, io, dead_pid):
    kept = {
        leftover(folder, os.getppid()),
        leftover(folder, dead_pid, host="0-elsewhere", age=3600),
    }
    (folder / ".saving-notes.part").write_text("not ours")
    io.save_checkpoint(state(2), folder / "last.ckpt")
    assert {file for file in folder.iterdir() if file.suffix == ".part"} == {
        *kept,
        folder / ".saving-notes.part",
    }


def test_a_save_at_the_same_time_in_this_process_stays(monkeypatch, folder, io):
    written, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def wait(descriptor):
        if threading.current_thread() is not threading.main_thread():
            written.set()
            go_on.wait(20)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait)
    other = threading.Thread(target=io.save_checkpoint, args=(state(2), folder / "best.ckpt"))
    other.start()
    assert written.wait(20)
    DurableCheckpoints().save_checkpoint(state(3), folder / "last.ckpt")
    go_on.set()
    other.join()
    assert (step_of(folder / "best.ckpt"), step_of(folder / "last.ckpt")) == (2, 3)


def test_a_draft_tells_host_and_process_and_is_hidden(monkeypatch, folder, io):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append(a.name) or replace(a, b))
    io.save_checkpoint(state(2), folder / "last.ckpt")
    assert seen[0].startswith(".saving-")
    assert f"-{os.getpid()}-" in seen[0]
    assert seen[0].endswith(f"-{socket.gethostname()}.part")


# Removing


def test_a_link_is_removed_and_what_it_leads_to_stays(folder, io):
    for name in ("link.ckpt", "dangling.ckpt"):
        os.symlink("last.ckpt" if name == "link.ckpt" else "gone", folder / name)
        io.remove_checkpoint(folder / name)
    assert_as_before(folder)


def test_files_and_folders_are_removed_and_what_is_missing_is_no_error(folder, io):
    (folder / "sharded.ckpt" / "shard").mkdir(parents=True)
    for name in ("sharded.ckpt", "last.ckpt", "missing.ckpt"):
        io.remove_checkpoint(folder / name)
    assert list(folder.iterdir()) == []


def test_a_new_best_is_whole_before_the_old_one_goes(
    make_trainer, make_module, data, tmp_path, monkeypatch, io
):
    seen = []
    remove = io.remove_checkpoint

    def look(path):
        others = [file for file in Path(path).parent.glob("*.ckpt") if file != Path(path)]
        seen.append([torch.load(file, weights_only=True)["global_step"] for file in others])
        remove(path)

    monkeypatch.setattr(io, "remove_checkpoint", look)
    checkpoint = ModelCheckpoint(tmp_path / "run", monitor="val/loss", save_top_k=1)
    make_trainer(checkpoint, enable_checkpointing=True, plugins=[io]).fit(make_module(), data)
    assert seen == [[8]]


# Several processes


SCRIPT = """
import resource, sys
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from project.callbacks import DurableCheckpoints
from project.mistakes import UserError

class Full(DurableCheckpoints):
    saves = 0
    def save_checkpoint(self, *args, **kwargs):
        self.saves += 1
        if self.saves == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        super().save_checkpoint(*args, **kwargs)

torch.set_num_threads(1)
checkpoint = ModelCheckpoint(sys.argv[1], filename="all", enable_version_counter=False)
trainer = L.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, limit_train_batches=2,
    limit_val_batches=0, logger=False, enable_progress_bar=False, callbacks=[checkpoint],
    plugins=[Full()],
)
try:
    trainer.fit(BoringModel())
except UserError as error:
    print("told:", error)
    sys.exit(2)
finally:  # else gloo's threads may outlive the interpreter, which aborts it
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_save_that_fails_ends_all_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,  # until the pipes of both processes are closed
    )
    assert done.returncode == 2
    assert done.stdout.count("told: Checkpoint") == 1
    (file,) = (tmp_path / "run").iterdir()
    assert torch.load(file, weights_only=True)["global_step"] == 2


# Loading, and what is not a file here


class Harmful:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


@pytest.fixture
def address(folder):
    """The folder served over http."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("weights_only", [None, True])
@pytest.mark.parametrize("remote", [False, True])
def test_code_in_a_checkpoint_is_not_run(
    weights_only, remote, folder, address, monkeypatch, tmp_path, io
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.save({"state": Harmful()}, folder / "harmful.ckpt")
    place = address if remote else folder
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        io.load_checkpoint(f"{place}/harmful.ckpt", weights_only=weights_only)
    assert not Path("executed").exists()
    assert io.load_checkpoint(f"{place}/last.ckpt", weights_only=weights_only)["step"] == 1


def test_more_than_weights_is_loaded_where_it_is_asked_for(folder, io):
    torch.save({"path": Path("a")}, folder / "a.ckpt")
    assert io.load_checkpoint(folder / "a.ckpt", weights_only=False) == {"path": Path("a")}


def test_remote_paths_go_lightnings_way(io):
    path = "memory://run/last.ckpt"
    io.save_checkpoint(state(2), path)
    assert io.load_checkpoint(path)["step"] == 2
    io.remove_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(path)
    assert not Path("memory:").exists()


def test_storage_options_are_refused_as_lightning_does(folder, io):
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint(state(2), folder / "last.ckpt", storage_options={"key": 1})
