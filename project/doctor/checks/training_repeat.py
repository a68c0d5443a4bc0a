"""Whether a run can be done again, gone on with, and loaded."""

import re
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import torch

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn
from project.doctor.checks.training_runs import Reseed, rehearsed
from project.doctor.loop import Lesson, of_the_user
from project.doctor.once import once

EPOCH = 4  # steps; even, for tasks that step with every other batch


@check("training")
def seed_is_set(subject: Subject) -> Finding:
    """The run has a seed."""
    if "seed_everything" not in subject.settings:
        raise Skip("no settings")
    seed = subject.settings["seed_everything"]
    if seed is None or seed is False:
        return warn("seed_everything is not set", "Set it: --seed_everything 42")
    return passed(f"seed {seed}")


@check("training", seconds=8)
def same_seed_same_run(subject: Subject) -> Finding:
    """Two short runs with the same seed are equal."""
    losses = []
    for _ in range(2):
        L.seed_everything(subject.seed, workers=True, verbose=False)
        losses.append(subject.train(steps=6, limit_val_batches=0).losses)
    one, two = losses
    if not one or len(one) != len(two):
        raise Skip("the runs have no losses, or not as many")
    wrong = next((i for i, (a, b) in enumerate(zip(one, two, strict=True)) if _differ(a, b)), None)
    if wrong is None:
        return passed(f"{len(one)} steps")
    return warn(
        f"two runs with seed {subject.seed} differ at step {wrong}: loss {one[wrong]:.6g} and "
        f"{two[wrong]:.6g}",
        "Draw random numbers from torch, numpy.random or random, without generators that are "
        "seeded by the time or not at all; no order that depends on a set.",
    )


def _differ(one: float, two: float, tolerance: float = 1e-5) -> bool:
    return not abs(one - two) <= tolerance * max(abs(one), abs(two))


def _first_epoch(subject: Subject) -> tuple[Lesson, Path]:
    """Train for a short epoch; return it with its checkpoint."""

    def make() -> tuple[Lesson, Path]:
        lesson = _train(subject, EPOCH)
        if lesson.ended_early or len(lesson.losses) < EPOCH:
            raise Skip(f"only {len(lesson.losses)} losses in {lesson.seconds:.0f} s")
        file = subject.folder / "epoch.ckpt"
        with of_the_user():
            lesson.trainer.save_checkpoint(file)
        return lesson, file

    return once(subject, "first epoch", make)


def _train(subject: Subject, steps: int, **more: Any) -> Lesson:
    return subject.train(
        steps=steps,
        callbacks=[Reseed()],
        batches=subject.batches("train", EPOCH),
        limit_train_batches=EPOCH,
        accumulate_grad_batches=1,
        limit_val_batches=0,
        **({"max_epochs": 10, "max_steps": -1} | more),
    )


@check("training", seconds=8)
def checkpoint_loads_safely(subject: Subject) -> Finding:
    """A checkpoint holds only what can be loaded without running foreign code."""
    _, file = _first_epoch(subject)
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = name[1] if name else str(error).strip().split("\n")[0]
        return fail(
            f"the checkpoint holds {what}, which is refused with weights_only",
            "In save_hyperparameters() leave out what is no number, string, list or dictionary: "
            "ignore=['net']; in on_save_checkpoint store tensors.",
        )
    return passed(f"{file.stat().st_size / 2**20:.1f} MiB")


@check("training", seconds=10)
def resume_goes_on(subject: Subject) -> Finding:
    """Some steps, a checkpoint and as many more are the same as all of them at once."""
    _, file = _first_epoch(subject)
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception:
        raise Skip("the checkpoint does not load, see checkpoint-loads-safely") from None
    straight = _train(subject, 2 * EPOCH).losses[EPOCH:]
    resumed = _train(subject, EPOCH, ckpt_path=file).losses
    if len(straight) < EPOCH or len(resumed) < EPOCH:
        raise Skip("not all steps in the time of the check")
    pairs = list(zip(straight, resumed, strict=False))
    wrong = next((i for i, (a, b) in enumerate(pairs) if _differ(a, b, 1e-3)), None)
    if wrong is None:
        return passed(f"loss {resumed[-1]:.4g} both ways")
    # With manual optimization gradients may be on their way from one batch to the next.
    manual = not rehearsed(subject).module.automatic_optimization
    return (warn if manual else fail)(
        f"{wrong + 1} steps after a resume the loss is {resumed[wrong]:.6g}, without it "
        f"{straight[wrong]:.6g}",
        "Something that training changes is in no checkpoint: make it a buffer or parameter, or "
        "save it in on_save_checkpoint; optimizers must come from configure_optimizers.",
    )


@check("training")
def checkpoints_fit_on_the_disk(subject: Subject) -> Finding:
    """There is room for all checkpoints that the run keeps."""
    block = subject.settings.get("checkpoint")
    said = (block or {}).get("init_args") or {}
    if not said:
        raise Skip("no checkpoint settings")
    _, file = _first_epoch(subject)
    top = said.get("save_top_k", 1)
    top = rehearsed(subject).epochs if top == -1 else int(top)
    autosave = bool(subject.settings.get("autosave"))
    # One more than stay: a file is written before the one it takes the place of goes.
    count = top + bool(said.get("save_last")) + autosave + 1
    need = count * file.stat().st_size
    folder = Path(subject.trainer_settings.get("default_root_dir") or ".").absolute()
    folder = next(one for one in (folder, *folder.parents) if one.is_dir())
    free = shutil.disk_usage(folder).free
    words = f"{count} checkpoints of {_size(file.stat().st_size)} need {_size(need)}, "
    words += f"{_size(free)} are free below {folder}"
    if need > free:
        return fail(words, "Lower checkpoint.init_args.save_top_k, or write to another disk.")
    return warn(words, "That leaves little.") if need > 0.8 * free else passed(words)


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
