"""A network that cannot be exported: the module, the line, and what to write instead."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from project.export.formats import NAMES, to_program, write_onnx
from project.export.whole import Whole
from project.mistakes import RunFailed

pytestmark = pytest.mark.slow


class Decides(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        if images.mean() > 0:
            return images * 2
        return images


class ReadsItem(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images * (1 if images.max().item() > 3 else 2)


class ReadsList(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images * torch.tensor(images.mean((1, 2, 3)).tolist())[:, None, None, None]


class CallsNumpy(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images + float(np.mean(images.detach().numpy()))


class FixesBatch(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.reshape(int(images.shape[0]), -1)


class LoopsOverBatch(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[at] * 2 for at in range(len(images))])


class AttendsInThree(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        rows = images[:, 0]
        return torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)[:, None]


class HasNoOnnx(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.special.bessel_j0(images)


def failure(part: nn.Module, tmp_path) -> str:
    net = nn.Sequential(nn.Identity(), nn.Sequential(part), nn.Flatten(), nn.Linear(64, 10))
    whole = Whole(net, None, softmax=True)
    try:
        program = to_program(whole, torch.zeros(2, 1, 8, 8), sizes_vary=False)
        write_onnx(program, whole, tmp_path / NAMES["onnx"], opset=18)
    except RunFailed as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("part", "line", "instead"),
    [
        (Decides, "if images.mean() > 0:", "torch.where"),
        (ReadsItem, ".item() > 3 else 2)", "keep it a tensor"),
        (ReadsList, ".tolist())", "keep it a tensor"),
        (CallsNumpy, "np.mean(images.detach().numpy())", "torch function of that name"),
        (FixesBatch, "images.reshape(int(images.shape[0]), -1)", "-1 in reshape"),
        (LoopsOverBatch, "for at in range(len(images))", "-1 in reshape"),
        (AttendsInThree, "scaled_dot_product_attention(rows", "simpler operations"),
        (HasNoOnnx, "torch.special.bessel_j0(images)", "--format pt2"),
    ],
)
def test_the_fault_has_a_module_a_line_and_a_cure(
    part: type[nn.Module], line: str, instead: str, tmp_path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = failure(part(), tmp_path)
    assert f"in 1.0 ({part.__name__})" in said
    assert re.search(rf"test_fault\.py, line \d+: .*{re.escape(line)}", said)
    assert instead in said.split("Instead: ")[1]
    assert len(said.splitlines()) == 3
    assert "Next steps" not in said  # which is what torch says first
    assert "".join(capfd.readouterr()) == ""
