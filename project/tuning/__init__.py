"""What ``lightning tune`` measures: workers, batch size, learning rate."""
