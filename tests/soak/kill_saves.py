"""Kill processes while they save checkpoints, and count what that leaves behind.

    python tests/soak/kill_saves.py FOLDER --io lightning.pytorch.plugins.io.TorchCheckpointIO

Prints one line of JSON. $TMPDIR should be a folder of its own on another file system than FOLDER.
"""

import argparse
import importlib
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # children are forked, which other threads do not survive

import torch

TENSORS = 10
LENGTH = 1_000_000  # 4 MB each, 40 MB in all


def state(step):
    """A checkpoint in which every number is the step, so that parts of two saves are seen."""
    return {"step": step, "weights": [torch.full((LENGTH,), float(step)) for _ in range(TENSORS)]}


def is_good(file):
    try:
        found = torch.load(file, weights_only=True)
    except Exception:
        return False
    numbers = found["weights"]
    return len(numbers) == TENSORS and all(bool((w == found["step"]).all()) for w in numbers)


def others(folder):
    """What is left of a save that did not end."""
    return [file for file in folder.iterdir() if file.suffix != ".ckpt"]


class Child:
    """A process that does what a run does: saves a best one, then over the last, then removes."""

    def __init__(self, io, folder, step):
        events, tell = os.pipe()
        wait, go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                new = state(step)
                os.write(tell, b"0")
                io.save_checkpoint(new, folder / f"best-{step}.ckpt")
                os.write(tell, b"1")
                os.read(wait, 1)
                os.write(tell, b"2")
                io.save_checkpoint(new, folder / "last.ckpt")
                os.write(tell, b"3")
                io.remove_checkpoint(folder / f"best-{step - 1}.ckpt")
                os.write(tell, b"4")
                signal.pause()
            finally:
                os._exit(1)
        os.close(tell)
        os.close(wait)
        self.events, self.go = events, go

    def until(self, event):
        while (seen := os.read(self.events, 1)) != event:
            if not seen:
                raise RuntimeError(f"a child that saves died before event {event!r}")

    def first_save(self):
        """Wait for it; return the seconds it took."""
        self.until(b"0")
        began = time.perf_counter()
        self.until(b"1")
        return time.perf_counter() - began

    def begin(self):
        os.write(self.go, b"!")
        self.until(b"2")

    def kill(self):
        """Kill it; return the events that it had not told of before."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        rest = b""
        while seen := os.read(self.events, 16):
            rest += seen
        os.close(self.events)
        os.close(self.go)
        return rest


def kill_saves(io, folder, kills, seed):
    """Count over many kills; each new child's first save is the next save after a kill."""
    chance = random.Random(seed)
    counts = dict.fromkeys(("kills", "inside", "half", "unloadable", "leftovers", "leaked"), 0)
    began = time.perf_counter()
    for step in range(kills + 1):
        child = Child(io, folder, step)
        usual = child.first_save()
        counts["leftovers"] += len(others(folder))
        if step == kills:
            child.kill()
            break
        child.begin()
        time.sleep(chance.uniform(0, 1.3 * usual))
        counts["inside"] += b"3" not in child.kill()
        counts["kills"] += 1
        counts["half"] += bool(others(folder))
        counts["leaked"] += clear(Path(tempfile.gettempdir()))
        for file in folder.glob("*.ckpt"):
            good = is_good(file)
            counts["unloadable"] += not good
            if not good or file.name not in ("last.ckpt", f"best-{step}.ckpt"):
                file.unlink()  # so that it is counted once, and the disk does not fill up
    return {**counts, "seconds": round(time.perf_counter() - began)}


def clear(folder):
    """Remove the files of a folder, and count them."""
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in files:
        file.unlink()
    return len(files)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--io", default="project.callbacks.DurableCheckpoints")
    args = parser.parse_args()
    module, name = args.io.rsplit(".", 1)
    io = getattr(importlib.import_module(module), name)()
    torch.set_num_threads(1)
    print(json.dumps(kill_saves(io, args.folder, args.kills, args.seed)))


if __name__ == "__main__":
    main()
