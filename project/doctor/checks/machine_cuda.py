"""NVIDIA devices: seen, used, and fit for this build of torch."""

import os
import shutil
import subprocess
from pathlib import Path

import torch

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn

INSTALL = "Install the build with CUDA: https://pytorch.org/get-started/locally"


def nvidia_devices() -> bool:
    """Whether the machine has an NVIDIA device and its driver, whatever torch thinks."""
    if list(Path("/dev").glob("nvidia[0-9]*")) or list(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, timeout=5, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def driver() -> str:
    """Return the version of the NVIDIA driver, or nothing."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""
    return next((word for word in first.split() if word[0].isdigit() and "." in word), "")


def _hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all devices."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and (not visible.strip() or visible.strip().startswith("-1"))


def _accelerator(subject: Subject) -> str:
    return str(subject.trainer_settings.get("accelerator") or "auto")


@check("machine", seconds=8)
def torch_build(subject: Subject) -> Finding:
    """Torch is built for the devices of this machine."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        return passed(f"torch {torch.__version__}")
    if not nvidia_devices():
        return passed(f"torch {torch.__version__}, no NVIDIA device")
    return warn(
        f"there is an NVIDIA device, but torch {torch.__version__} is built for the CPU alone",
        INSTALL,
    )


@check("machine", seconds=8)
def cuda_driver(subject: Subject) -> Finding:
    """The driver can run what torch is built for."""
    if torch.version.cuda is None:
        raise Skip("torch is built without CUDA")
    if torch.cuda.is_available():
        return _kernels()
    if _hidden() or not nvidia_devices():
        raise Skip("no NVIDIA device is visible")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "no reason given"
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
    found = fail if _accelerator(subject) in ("gpu", "cuda") else warn
    return found(
        f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, cannot use the driver "
        f"{driver()}: {reason}",
        "Update the driver, or install torch for an older CUDA; after an update of the driver, "
        "start the machine anew.",
    )


def _kernels() -> Finding:
    """Whether torch has code for every device."""
    built = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(number)
        # Code runs on devices of its generation that are not older; compute_* is translated.
        fits = any(
            arch.startswith("compute_") or _runs(arch, major, minor)
            for arch in built
            if arch[-1:].isalnum()
        )
        if built and not fits:
            return fail(
                f"{torch.cuda.get_device_name(number)} is sm_{major}{minor}, torch "
                f"{torch.__version__} has code for {', '.join(built)}",
                "Install a build of torch for this device.",
            )
    return passed(f"CUDA {torch.version.cuda}, driver {driver() or 'unknown'}")


def _runs(arch: str, major: int, minor: int) -> bool:
    digits = "".join(c for c in arch.removeprefix("sm_") if c.isdigit())
    return bool(digits) and int(digits[:-1] or 0) == major and int(digits[-1]) <= minor


@check("machine", seconds=8)
def cuda_used(subject: Subject) -> Finding:
    """A CUDA device that is there is used."""
    if _hidden():
        if torch.version.cuda is None or not nvidia_devices():
            raise Skip("no NVIDIA device")
        return warn(
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides all devices",
            "Unset it, unless the CPU is meant to train.",
        )
    if not torch.cuda.is_available():
        raise Skip("torch sees no CUDA device")
    told = f"{torch.cuda.device_count()} CUDA device(s)"
    if _accelerator(subject) == "cpu":
        return warn(
            f"{told}, but trainer.accelerator is cpu",
            "Leave trainer.accelerator at auto, unless the CPU is meant to train.",
        )
    return passed(told)
