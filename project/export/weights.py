"""Weights for others: safetensors and JSON that load where this project is not."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import project
from project import pretrained, report
from project.disk import COPY, writing
from project.export.architecture import NET, Architecture, find_architecture
from project.export.facts import images_taken, origin
from project.export.wanted import require
from project.mistakes import RunFailed, UserError
from project.runs import LoadedRun, find_class

WEIGHTS, MODEL, SOURCE, EXAMPLE = "model.safetensors", "model.json", f"{NET}.py", "example.py"
ANY_SIZE = 64  # px, of the example's image where the network takes any
_TOLERANCE = 1e-5  # of logits, relative to the largest: the same weights, normalised in fractions

_EXAMPLE = '''"""Needs {needs}: python example.py{file}."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from {module} import {name}

here = Path(__file__).parent
model = json.loads((here / "model.json").read_text())
net = {name}(**model["architecture"]["arguments"]).eval()
net.load_state_dict(load_file(here / "model.safetensors"))
{images}
with torch.inference_mode():
    logits = net({normalised})
said = model["class_names"][int(logits[0].argmax())]
print("class", said if images.any() else f"{{said}} (of a black image)")
'''
# The centre of an image, resized as `preprocess` and `read` of the data modules here do it.
_READ = '''

def read(file):
    """Return what the network was trained to see of an image file, (1, C, H, W), 0 to 255."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(Image.open(file)).convert("{mode}")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(1, image.height, image.width, -1).permute(0, 3, 1, 2).float()
'''
_RESIZED = """    sides = image.height, image.width
    tall, wide = (max({size}, int(side * {shorter} / min(sides))) for side in sides)
    top, left = round((tall - {size}) / 2), round((wide - {size}) / 2)
    resize = torch.nn.functional.interpolate
    pixels = resize(pixels, (tall, wide), mode="bilinear", antialias=True).round().clamp(0, 255)
    return pixels[..., top : top + {size}, left : left + {size}]
"""


def write_weights(loaded: LoadedRun, folder: Path) -> list[Path]:
    """Write a run's weights for others, all files or none, in place of those written before.

    ``model.safetensors`` and ``model.json`` (classes, images, architecture, where it is from);
    ``net.py``, the network's source, where that needs nothing of this project; and ``example.py``,
    which predicts with them. What was written is loaded again and compared before it is kept.

    Args:
        loaded: The run.
        folder: It may hold what this function has written, nothing else.

    Returns:
        The files.

    Raises:
        UserError: If safetensors is not installed, or ``folder`` holds something else.
        RunFailed: If a network built from these files answers differently.
    """
    _check(folder)
    found = find_architecture(loaded)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    with writing(folder, COPY):
        draft.mkdir(parents=True)
    try:
        _write(draft, loaded, found)
        names = sorted(file.name for file in draft.iterdir())
        _take_place(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if project.__name__ in found.packages:
        report.say(f"No {SOURCE}: {found.class_path} needs more of this project than its own file.")
    return [folder / name for name in names]


def _check(folder: Path) -> None:
    """Refuse before anything is computed."""
    require("safetensors", "--weights")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; the weights need a folder.")
    own = {WEIGHTS, MODEL, SOURCE, EXAMPLE, "__pycache__"}
    others = sorted({file.name for file in folder.glob("*")} - own)
    if others:
        raise UserError(
            f"{folder} holds {others[0]}, which is no file of --weights.\n"
            "The folder is replaced as a whole: name another."
        )


def _write(draft: Path, loaded: LoadedRun, found: Architecture) -> None:
    from safetensors.torch import save_file

    facts = images_taken(loaded)
    content = {
        "format": 1,
        **facts,
        "input": _input(facts),
        "architecture": {
            "made_by": f"{found.module}.{found.name}",
            "arguments": found.arguments,
            "packages": found.packages,
            "defined_in": found.class_path,
        },
        "parameters": sum(parameter.numel() for parameter in found.net.parameters()),
        **origin(loaded),
    }
    save_file(_tensors(found.net), draft / WEIGHTS, metadata={"format": "pt"})
    (draft / MODEL).write_text(json.dumps(content, indent=2) + "\n")
    (draft / WEIGHTS).chmod((draft / MODEL).stat().st_mode)  # safetensors: for the owner alone
    if found.source is not None:
        (draft / SOURCE).write_text(found.source)
    if found.arguments is not None and facts["in_channels"] and facts["class_names"]:
        (draft / EXAMPLE).write_text(_example(found, facts))
        _compare(loaded, found, draft, facts)


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights, each in memory of its own: safetensors refuses tied ones."""
    state: dict[str, Any] = net.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"The network keeps {name} in its state, a {type(value).__name__}; safetensors "
                "hold tensors only.\nExport it with --format pt2."
            )
    as_rows = torch.contiguous_format
    return {
        name: value.detach().cpu().clone(memory_format=as_rows) for name, value in state.items()
    }


def _input(facts: dict[str, Any]) -> str:
    """Say in words what the network takes."""
    channels, size = facts["in_channels"], facts["image_size"]
    shape = f"(B, {channels or 'C'}, {size or 'H'}, {size or 'W'})"
    if facts["mean"] is None:
        return f"float32 {shape}, as the run's data module gives them"
    kind = {1: "grey, ", 3: "RGB, "}.get(channels, "")
    crop = facts["crop_fraction"] or 1
    square = "the centre square" if crop == 1 else f"the centre, {crop:g} of the shorter side,"
    resized = f"; of other sizes {square} is resized to it, bilinear, antialiased" if size else ""
    return f"uint8 {shape}, {kind}0 to 255, then (images / 255 - mean) / std{resized}"


def _example(found: Architecture, facts: dict[str, Any]) -> str:
    packages = ["torch", *(p for p in found.packages if p != "torch"), "safetensors"]
    size = facts["image_size"] or ANY_SIZE
    shape = f"1, {facts['in_channels']}, {size}, {size}"
    images, normalised, file = f"images = torch.zeros({shape})  # yours here", "images", ""
    if facts["mean"] is not None:
        images, normalised = (
            f"torch.zeros({shape}, dtype=torch.uint8)",
            "(images / 255 - mean) / std",
        )
        if mode := {1: "L", 3: "RGB"}.get(facts["in_channels"]):
            packages.append("Pillow")
            file, images = " photo.jpg", f"read(sys.argv[1]) if sys.argv[1:] else {images}"
        images = (
            f"{_reading(facts, mode) if mode else ''}images = {images}\n"
            'mean, std = (torch.tensor(model[key]).view(-1, 1, 1) for key in ("mean", "std"))'
        )
    if _shows_grey_as_rgb(found.net, facts):
        normalised = f"({normalised}).expand(-1, 3, -1, -1)"
    return _EXAMPLE.format(
        needs=f"{', '.join(packages[:-1])} and {packages[-1]}",
        file=file,
        module=found.module,
        name=found.name,
        images=images,
        normalised=normalised,
    )


def _reading(facts: dict[str, Any], mode: str) -> str:
    """The lines that read an image file."""
    size, fraction = facts["image_size"], facts["crop_fraction"] or 1
    if size is None:
        return _READ.format(mode=mode) + "    return pixels\n\n\n"
    resized = _RESIZED.format(size=size, shorter=round(size / fraction))
    return _READ.format(mode=mode) + resized + "\n\n"


def _shows_grey_as_rgb(net: nn.Module, facts: dict[str, Any]) -> bool:
    first = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    return facts["in_channels"] == 1 and first is not None and first.in_channels == 3


def _compare(loaded: LoadedRun, found: Architecture, draft: Path, facts: dict[str, Any]) -> None:
    """Build the network from the files as the example does, and ask both about random images."""
    from safetensors.torch import load_file

    size = facts["image_size"] or ANY_SIZE
    images = torch.randint(256, (2, facts["in_channels"], size, size), dtype=torch.uint8)
    data: Any = loaded.datamodule
    given = taken = images / 255
    if facts["mean"] is not None:
        mean, std = (torch.tensor(facts[key]).view(-1, 1, 1) for key in ("mean", "std"))
        given, taken = data.preprocess(images), (taken - mean) / std
    if _shows_grey_as_rgb(found.net, facts):
        taken = taken.expand(-1, 3, -1, -1)
    with pretrained.left_out(), torch.inference_mode():
        net = _made_by(found, draft)(**(found.arguments or {})).eval()
        net.load_state_dict(load_file(draft / WEIGHTS))
        expected, logits = loaded.task(given), net(taken)
    difference = float((expected - logits).abs().max())
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RunFailed(
            f"A network made by {found.class_path} with the run's arguments and weights answers "
            f"differently, by {difference:.2g}.\nNothing was written."
        )


def _made_by(found: Architecture, draft: Path) -> Any:  # noqa: ANN401
    if found.source is None:
        return find_class(found.class_path)
    spec = importlib.util.spec_from_file_location(f"{NET}_of_{draft.name}", draft / SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, found.name)


def _take_place(draft: Path, folder: Path) -> None:
    """Give the draft its name; what had it goes."""
    shutil.rmtree(draft / "__pycache__", ignore_errors=True)
    before = draft.with_name(f"{draft.name}.before")
    if folder.exists():
        folder.replace(before)
    draft.replace(folder)
    shutil.rmtree(before, ignore_errors=True)
