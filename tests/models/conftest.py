"""What every network has to do, as checks of a function ``make(num_classes)`` for 8 x 8 images."""

import math

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def guesses_at_first():
    def check(make, num_classes):
        images, labels = torch.randn(512, 1, 8, 8), torch.randint(num_classes, (512,))
        loss = F.cross_entropy(make(num_classes)(images), labels).item()
        # Ten per cent: an untrained net knows nothing, and its logits are small.
        assert loss == pytest.approx(math.log(num_classes), 0.1)

    return check


@pytest.fixture
def reaches_every_parameter():
    def check(make):
        net = make()
        F.cross_entropy(net(torch.randn(64, 1, 8, 8)), torch.randint(10, (64,))).backward()
        silent = [
            n for n, p in net.named_parameters() if p.grad is None or p.grad.abs().sum().item() == 0
        ]
        assert silent == []

    return check


@pytest.fixture
def learns_by_heart():
    def check(make):
        net = make()
        images, labels = torch.randn(16, 1, 8, 8), torch.randint(10, (16,))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
        assert (net.eval()(images).argmax(dim=1) == labels).all()

    return check
