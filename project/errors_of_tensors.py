"""What torch says about devices, types, shapes and labels, and what it means."""

import re
from typing import Any

from project.explain import Answer, Classic, Scene

Found = re.Match[str]
RUNTIME = ("RuntimeError",)
_TYPE = r"((?:torch\.)?\w+(?: \w+)?)"
_SIZE = r"\[([\d, ]*)\]"


def _device(found: Found, scene: Scene) -> Answer:
    names = r"\b((?:cuda|mps|xpu|hpu):\d+|cuda|cpu|mps|meta)\b"
    devices = list(dict.fromkeys(re.findall(names, scene.message.split("(when")[0].lower())))
    return Answer(
        f"One operation{{inside}} got tensors on different devices: {' and '.join(devices)}.",
        "a tensor that was made in a step or kept in a plain attribute, list or dict: it stays on "
        "the CPU when Lightning moves the task.",
        "make it with device=x.device, as the input x has it, or keep it with register_buffer or "
        "in an nn.ModuleList.",
    )


def _types(found: Found, scene: Scene) -> Answer:
    kinds = " and ".join(part for part in found.groups() if part)
    return Answer(
        f"Two tensors{{inside}} have different types: {kinds}.",
        "arrays of numpy become float64 (Double), images from files uint8 (Byte); weights are "
        "float32.",
        "convert the inputs in the data set: torch.as_tensor(array, dtype=torch.float32).",
    )


def _labels_type(found: Found, scene: Scene) -> Answer:
    target = scene.local("target")
    if target is None or not scene.passed("torch/nn/functional.py"):
        return _types(found, scene)
    return Answer(
        f"The loss wants class numbers of type int64 (Long); the targets are {target.dtype}.",
        "labels read from numpy, pandas or a file as float or int32.",
        "convert them in the data set: torch.as_tensor(label, dtype=torch.long).",
    )


def _product(found: Found, scene: Scene) -> Answer:
    rows, given, wanted, out = found.groups()
    layer = scene.modules()[0] if scene.modules() else None
    if type(layer).__name__ == "Linear":
        what = f"{{layer}} takes {wanted} features, its input has {given} ({rows} x {given})."
    else:
        what = f"A product of {rows} x {given} with {wanted} x {out}{{inside}}: {given} is not "
        what += f"{wanted}."
    return Answer(
        what,
        "another image size or number of channels than the network was written for, or a missing "
        "nn.Flatten.",
        f"set in_features to {given}, pool to a fixed size before the layer, or change the images.",
    )


def _multi_target(found: Found, scene: Scene) -> Answer:
    target = scene.local("target")
    shape = f" of shape {tuple(target.shape)}" if target is not None else ""
    return Answer(
        f"Cross-entropy got class numbers{shape}; it wants one number per sample, shape (B,).",
        "labels as (B, 1), or one-hot labels of an integer type.",
        "labels.squeeze(1), or labels.argmax(1); one-hot labels may also be given as float.",
    )


def _label(found: Found, scene: Scene) -> Answer:
    shape: Any = getattr(scene.local("input"), "shape", ())
    known = f"; the output has {shape[1]} classes, 0 to {shape[1] - 1}" if len(shape) > 1 else ""
    return Answer(
        f"A label is {found[1]}{known}.",
        "labels that count from 1, a class too many in the data, or num_classes of another data "
        "set.",
        "number the classes from 0, or give the last layer as many outputs as there are classes.",
    )


def _index(found: Found, scene: Scene) -> Answer | None:
    layer: Any = scene.modules()[0] if scene.modules() else None
    if type(layer).__name__ != "Embedding":
        return None
    inputs, count = scene.local("input"), layer.num_embeddings
    wrong = inputs[(inputs >= count) | (inputs < 0)].flatten()
    return Answer(
        f"{{layer}} has {count} rows, 0 to {count - 1}; an index is {int(wrong[0])}.",
        "a vocabulary or padding index that is larger than num_embeddings.",
        "raise num_embeddings, or look at how the indices are made.",
    )


TENSORS = (
    Classic(
        RUNTIME,
        r"^Expected all tensors to be on the same device|is not on the expected device|"
        r"^indices should be either on \S+ or on the same device|"
        r"^Input type \([\w.]*\) and weight type \(torch\.(?:cuda|mps)\.\w+\)|"
        r"^Input type \(torch\.(?:cuda|mps)\.\w+\) and weight type",
        _device,
    ),
    Classic(
        ("TypeError", *RUNTIME),
        r"^can't convert \S+ device type tensor to numpy|^Can't call numpy\(\) on Tensor that req",
        Answer(
            "numpy reads only tensors in main memory that are not part of a graph.",
            "a prediction or loss that is handed to numpy, matplotlib or scikit-learn as it is.",
            "call .detach().cpu() first, and not on the way to training_step's loss.",
        ),
    ),
    Classic(
        RUNTIME,
        rf"have the same dtype, but got:? {_TYPE} (?:and|!=) {_TYPE}$|"
        rf"^Input type \({_TYPE}\) and (?:weight|bias) type \({_TYPE}\) should be the same$|"
        rf"^Found dtype {_TYPE} but expected {_TYPE}$",
        _types,
    ),
    Classic(
        ("RuntimeError", "NotImplementedError"),
        rf"^expected scalar type {_TYPE} but found {_TYPE}$|"
        rf"^expected target dtype to be {_TYPE}.*, but got (\w+)$|"
        r"^\"nll_loss\w*\" not implemented for '(\w+)'$",
        _labels_type,
    ),
    Classic(
        RUNTIME,
        r"^mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)",
        _product,
    ),
    Classic(
        RUNTIME,
        rf"^Given groups=\d+, weight of size .*expected input{_SIZE} to have (\d+) channels, but "
        r"got (\d+) channels",
        Answer(
            "{layer} takes {2} channels, its input ({1}) has {3}.",
            "grey images in a network for RGB or the reverse, or images as (B, H, W, C).",
            "set the first layer's in_channels to {3}, convert the images, or permute them to "
            "(B, C, H, W).",
        ),
    ),
    Classic(
        RUNTIME,
        r"^Expected \dD \(unbatched\) or \dD \(batched\) input to conv\w+, but got input of size: "
        + _SIZE,
        Answer(
            "{layer} got an input of shape ({1}): batch or channels are missing.",
            "a grey image without its channel, a flattened image, or one image without a batch.",
            "images are (B, C, H, W): add the dimension with unsqueeze.",
        ),
    ),
    Classic(
        RUNTIME,
        r"^Calculated padded input size per channel: \(([\d x]+)\)\. Kernel size: \(([\d x]+)\)",
        Answer(
            "{layer} slides a kernel of {2} over {1}: nothing is left of the image.",
            "a network for larger images: each of its strides and poolings halves the size.",
            "use larger images, or take out a stride or pooling.",
        ),
    ),
    Classic(
        RUNTIME,
        r"^running_mean should contain (\d+) elements not (\d+)",
        Answer(
            "{layer} is for {2} channels, its input has {1}.",
            "the layer before it was changed, or the order of the dimensions.",
            "set its num_features to the channels of the layer before.",
        ),
    ),
    Classic(
        ("ValueError",),
        r"^Expected more than 1 value per channel when training, got input size (?:torch\.Size\()?"
        + _SIZE,
        Answer(
            "{layer} got one value per channel, shape ({1}): that has no variance.",
            "an epoch's last batch has a single sample.",
            "set drop_last=True for the training loader, or another batch_size.",
        ),
    ),
    Classic(
        ("ValueError",),
        r"^Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        Answer(
            "The loss got {1} predictions and {2} targets.",
            "a reshape in the network that mixes batch and other dimensions, e.g. view(-1, n), or "
            "logits and labels of different batches.",
            "print logits.shape and labels.shape before the loss; keep the batch: flatten(1).",
        ),
    ),
    Classic(
        ("ValueError",),
        rf"^Target size \(torch\.Size\({_SIZE}\)\) must be the same as input size "
        rf"\(torch\.Size\({_SIZE}\)\)",
        Answer(
            "The loss got predictions of shape ({2}) and targets of shape ({1}).",
            "a last dimension of 1 in one of them.",
            "make them the same: logits.squeeze(1), or labels.unsqueeze(1), and float targets.",
        ),
    ),
    Classic(
        RUNTIME,
        rf"^Expected target size {_SIZE}, got {_SIZE}",
        Answer(
            "Cross-entropy wants targets of shape ({1}) for these logits, got ({2}).",
            "classes must be dimension 1 of the logits, (B, K, …); the targets have all others.",
            "move the classes with logits.movedim(-1, 1), and drop extra dimensions.",
        ),
    ),
    Classic(
        RUNTIME, r"^0D or 1D target tensor expected, multi-target not supported", _multi_target
    ),
    Classic(
        RUNTIME,
        r"^The size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at "
        r"non-singleton dimension (\d+)",
        Answer(
            "Tensors of size {1} and {2} in dimension {3} do not fit{inside}.",
            "images of different sizes, a skip connection after a stride, or a target that is not "
            "shaped like the prediction.",
            "print both shapes in the line before; sizes must be equal or 1.",
        ),
    ),
    Classic(
        RUNTIME,
        r"^shape '\[([\d, -]+)\]' is invalid for input of size (\d+)",
        Answer(
            "{2} numbers cannot be arranged as [{1}]{inside}.",
            "a size written into the code: another batch or image size than expected.",
            "use x.flatten(1), or x.shape[0] in place of the number.",
        ),
    ),
    Classic(
        RUNTIME,
        rf"^stack expects each tensor to be equal size, but got {_SIZE} at entry (\d+) and "
        rf"{_SIZE} at entry (\d+)",
        Answer(
            "A batch cannot be put together: sample {2} has shape ({1}), sample {4} has ({3}).",
            "images of different sizes, or some grey and some in colour.",
            "resize or crop in the data set, convert to one mode, or give a collate_fn.",
        ),
    ),
    Classic(("IndexError",), r"^Target (-?\d+) is out of bounds\.?$", _label),
    Classic(("IndexError",), r"^index out of range in self$", _index),
)
