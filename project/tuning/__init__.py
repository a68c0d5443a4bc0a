"""What ``lightning tune`` measures: workers, precision, batch size, learning rate."""

PARTS = ("workers", "precision", "batch_size", "lr")  # in the order in which they are measured
