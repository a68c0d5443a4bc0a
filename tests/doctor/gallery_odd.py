"""Healthy tasks that look like mistakes: zeros, detached weights, shared layers and the like."""

from typing import Any

import torch
import torch.nn.functional as F
from gallery import healthy
from torch import Tensor, nn
from zoo.model_parts import Cnn, GroupNormNet, Own
from zoo.parts import Pictures, Specimen, Task, small_net


@healthy
def zero_head_and_zero_residuals() -> Specimen:
    net = GroupNormNet()
    for layer in (net.head, net.blocks[0][2], net.blocks[1][2]):
        nn.init.zeros_(layer.weight)
    return Specimen(Task(net), Pictures())


@healthy
def shared_weights() -> Specimen:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.middle = nn.Linear(64, 64), nn.Linear(64, 64)
            self.head = nn.Linear(64, 4)
            self.again = self.middle

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x.flatten(1)).relu()
            return self.head(self.again(self.middle(x).relu()).relu())

    return Specimen(Task(Net()), Pictures())


@healthy
def soft_capped_logits_and_clamped_inputs() -> Specimen:
    class Net(GroupNormNet):
        def forward(self, x: Tensor) -> Tensor:
            return 20 * torch.tanh(super().forward(x.clamp(-3, 3)) / 20)

    return Specimen(Task(Net()), Pictures())


@healthy
def focal_loss_with_detached_weights() -> Specimen:
    class Focal(Task):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            each = F.cross_entropy(logits, labels, reduction="none")
            return ((1 - (-each.detach()).exp()) ** 2 * each).mean()

    return Specimen(Focal(Cnn()), Pictures())


@healthy
def binary_with_one_logit() -> Specimen:
    class Binary(Task):
        def __init__(self):
            super().__init__(small_net(classes=1))

        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            return F.binary_cross_entropy_with_logits(logits.squeeze(1), labels.float())

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            logits = self(batch[0])
            self.log("val/loss", self.loss(logits, batch[1]))
            self.log("val/acc", ((logits.squeeze(1) > 0) == batch[1].bool()).float().mean())

    return Specimen(Binary(), Pictures(classes=2))


@healthy
def log_softmax_and_nll() -> Specimen:
    class Nll(Task):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            return F.nll_loss(logits, labels)

    return Specimen(Nll(nn.Sequential(small_net(), nn.LogSoftmax(1))), Pictures())


@healthy
def contrastive_term() -> Specimen:
    class Contrastive(Task):
        def __init__(self):
            super().__init__(Cnn())

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            images, labels = batch
            features = F.normalize(self.net.features(images).flatten(1), dim=1)
            alike = features @ features.T
            same = (labels[:, None] == labels[None, :]).float()
            loss = self.loss(self(images), labels) + 0.1 * F.mse_loss(alike, same)
            self.log("train/loss", loss)
            return loss

    return Specimen(Contrastive(), Pictures())


@healthy
def weights_averaged_by_hand() -> Specimen:
    class Averaged(Task):
        def __init__(self):
            super().__init__(Cnn())
            self.average = torch.optim.swa_utils.AveragedModel(self.net)
            self.average.requires_grad_(False)

        def on_train_batch_end(self, *args: Any) -> None:
            self.average.update_parameters(self.net)

    return Specimen(Averaged(), Pictures())


@healthy
def two_optimizers() -> Specimen:
    class Two(Task):
        def __init__(self):
            super().__init__(Cnn())
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            loss = self.loss(self(batch[0]), batch[1])
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            self.log("train/loss", loss)

        def configure_optimizers(self) -> Any:
            head = list(self.net.head.parameters())
            rest = [p for n, p in self.net.named_parameters() if not n.startswith("head")]
            return [torch.optim.AdamW(head, lr=3e-3), torch.optim.SGD(rest, lr=0.05)]

    return Specimen(Two(), Pictures())


@healthy
def torchmetrics_and_a_loss_module() -> Specimen:
    from torchmetrics.classification import MulticlassAccuracy

    class Metrics(Own):
        def __init__(self):
            super().__init__()
            self.criterion = nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, 1.0, 2.0]))
            self.val_acc = MulticlassAccuracy(4)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.val_acc(self(batch[0]), batch[1])
            self.log("val_metric", self.val_acc)

    return Specimen(Metrics(), Pictures())


@healthy
def optimizer_made_by_a_closure() -> Specimen:
    net = Cnn()

    class Closed(Task):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    return Specimen(Closed(net), Pictures(), {"trainer": {"max_epochs": 10}})


@healthy
def images_standardised_one_by_one() -> Specimen:
    data = Pictures()
    for split in ("train", "val", "test"):
        images, labels = getattr(data, split)
        means, deviations = (f(images, (1, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        setattr(data, split, ((images - means) / deviations, labels))
    return Specimen(Task(Cnn()), data)
