"""What ``lightning tune`` measures: workers, batch size, learning rate."""

PARTS = ("workers", "batch_size", "lr")  # in the order in which they are measured
