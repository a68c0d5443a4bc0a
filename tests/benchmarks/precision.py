"""What precision, memory order and compilation do to a training step of the recipes' ConvNet.

Forward, backward and the fused step of AdamW on one fixed batch of 128 images of MNIST's size, in
CPU milliseconds of one thread (on CUDA: milliseconds until the device is done), in interleaved
rounds; the table has the median of the rounds. torch.compile is shown with the steps after which it
has earned back what compiling took, against the same step without it.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from project.models import ConvNet


def make_step(precision: str, order: torch.memory_format, compiled: bool) -> Callable[[], None]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = ConvNet(1, 10).to(device).to(memory_format=order)
    if compiled:
        net.compile()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    images = torch.randn(128, 1, 28, 28, device=device).contiguous(memory_format=order)
    labels = torch.randint(10, (128,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = F.cross_entropy(net(images).float(), labels)
        loss.backward()
        optimizer.step()

    return step


def spent(step: Callable[[], None], times: int) -> float:
    """Seconds of some steps."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begun = clock()
    for _ in range(times):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="takes a minute more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    usual, last = torch.contiguous_format, torch.channels_last
    kinds = [("float32", usual, False), ("float32", last, False)]
    kinds += [("bf16-mixed", usual, False), ("bf16-mixed", last, False)]
    kinds += [("float32", last, True), ("bf16-mixed", last, True)] if args.compile else []
    steps = [make_step(*kind) for kind in kinds]
    first = [spent(step, 2) for step in steps]  # compiles
    rounds = [[spent(step, args.steps) / args.steps for step in steps] for _ in range(args.rounds)]
    table = Table(
        "precision", "memory order", "compiled", "ms a step", "times as fast", "pays after"
    )
    for kind, (precision, order, compiled) in enumerate(kinds):
        each = [turn[kind] for turn in rounds]
        ratio = statistics.median(turn[0] / turn[kind] for turn in rounds)
        twin = kinds.index((precision, order, False))
        gain = statistics.median(turn[twin] - turn[kind] for turn in rounds)
        pays = f"{first[kind] / gain:.0f} steps" if gain > 0 else f"never, {first[kind]:.0f} s"
        table.add_row(
            precision,
            str(order).removeprefix("torch."),
            "yes" if compiled else "",
            f"{1e3 * statistics.median(each):.1f}",
            f"{ratio:.2f}",
            pays if compiled else "",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
