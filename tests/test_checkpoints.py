import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch

from project.checkpoints import is_intact
from project.runs import Run


def save(file, step=1, size=1000):
    torch.save({"step": step, "weights": torch.arange(size) % 251}, file)
    return file


def set_age(file, seconds):
    now = file.stat().st_mtime
    os.utime(file, (now - seconds, now - seconds))


def load(file):
    found = torch.load(file, weights_only=True)
    return found["step"], found["weights"].tolist()


class Harmful:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_what_torch_saves_is_intact(tmp_path):
    assert is_intact(save(tmp_path / "a.ckpt"))
    assert is_intact(str(tmp_path / "a.ckpt"))


def test_every_flipped_byte_is_seen_or_harmless(tmp_path):
    file = save(tmp_path / "a.ckpt", size=64)
    whole, expected = file.read_bytes(), load(file)
    seen = 0
    directory = whole.index(b"PK\1\2")
    for position in (*range(0, directory, 3), *range(directory, len(whole))):
        broken = bytearray(whole)
        broken[position] ^= random.Random(position).randrange(1, 256)
        file.write_bytes(broken)
        if is_intact(file):
            assert load(file) == expected
        else:
            seen += 1
    assert seen > 64 * 8 / 3  # all that hold a weight, at least


def test_every_cut_is_seen(tmp_path):
    file = save(tmp_path / "a.ckpt", size=64)
    whole = file.read_bytes()
    for length in (*range(0, len(whole) - 120, 11), *range(len(whole) - 120, len(whole))):
        file.write_bytes(whole[:length])
        assert not is_intact(file)


def test_bytes_that_were_never_written_are_seen(tmp_path):
    file = save(tmp_path / "a.ckpt", size=100_000)
    with file.open("r+b") as broken:
        broken.seek(300_000)
        broken.write(bytes(4096))
    assert not is_intact(file)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_other_files_are_not_intact(content, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(content)
    assert not is_intact(tmp_path / "a.ckpt")


def test_what_is_no_file_is_not_intact(tmp_path):
    os.mkfifo(tmp_path / "pipe.ckpt")
    os.symlink("self.ckpt", tmp_path / "self.ckpt")
    for name in ("", "missing.ckpt", "pipe.ckpt", "self.ckpt"):
        assert not is_intact(tmp_path / name)


def test_looking_runs_nothing_that_is_in_the_file(tmp_path):
    torch.save(Harmful(), tmp_path / "a.ckpt")
    assert is_intact(tmp_path / "a.ckpt")
    assert not Path("executed").exists()


def test_looking_takes_the_same_memory_for_large_files(tmp_path):
    file = save(tmp_path / "a.ckpt", size=8_000_000)  # 64 MB
    tracemalloc.start()
    assert is_intact(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def test_starts_without_torch():
    code = "import sys, project.checkpoints; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_links_lead_to_their_file_and_those_to_nothing_are_passed_over(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save({"global_step": 3}, folder / "a.ckpt")
    os.symlink("gone.ckpt", folder / "dangling.ckpt")
    os.symlink("self.ckpt", folder / "self.ckpt")
    assert Run(tmp_path).newest_intact() == folder / "a.ckpt"
    os.symlink("a.ckpt", folder / "last.ckpt")
    assert Run(tmp_path).newest_intact().resolve() == (folder / "a.ckpt").resolve()
