import pytest
import torch
from lightning.pytorch import callbacks
from torch.optim.lr_scheduler import LambdaLR

from project.callbacks import LearningRateMonitor


@pytest.fixture
def curves(make_trainer, make_module, data, read_events):
    """Train with groups of these rates; the learning rates' curves as lists of values."""

    def train(*rates, monitor=LearningRateMonitor, warm_up=False):
        class Grouped(make_module):
            def configure_optimizers(self):
                parameters = list(self.parameters())
                groups = [
                    {"params": [parameters.pop()] if parameters else [], "lr": lr, "name": name}
                    for lr, name in zip(rates, "abc", strict=False)
                ]
                optimizer = torch.optim.SGD(groups)
                scheduler = LambdaLR(optimizer, lambda step: step / 8 if warm_up else 0.9**step)
                return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

        make_trainer(monitor("step")).fit(Grouped(), data)
        events = read_events()
        tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("lr-")]
        return {tag: [point.value for point in events.Scalars(tag)] for tag in tags}

    return train


def test_groups_with_one_rate_have_one_curve(curves):
    (found,) = curves(0.1, 0.1).items()
    assert found == ("lr-SGD", pytest.approx([0.1 * 0.9**step for step in range(8)]))


def test_a_single_group_has_the_same_name_as_several_that_agree(curves):
    assert curves(0.1).keys() == {"lr-SGD"}


def test_every_rate_has_a_curve_under_the_name_of_its_first_group(curves):
    found = curves(0.1, 0.01, 0.1)
    assert found.keys() == {"lr-SGD/a", "lr-SGD/b"}
    assert found["lr-SGD/b"] == pytest.approx([rate / 10 for rate in found["lr-SGD/a"]])


def test_rates_that_warm_up_from_0_are_two_from_the_start(curves):
    found = curves(0.1, 0.01, warm_up=True)
    assert {tag: len(values) for tag, values in found.items()} == {"lr-SGD/a": 8, "lr-SGD/b": 8}


def test_values_are_lightnings(curves, tmp_path):
    ours = curves(0.1, 0.01)
    for file in tmp_path.iterdir():
        file.unlink()
    assert curves(0.1, 0.01, monitor=callbacks.LearningRateMonitor) == ours
