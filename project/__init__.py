"""A PyTorch Lightning project: data, models, tasks and callbacks, joined by YAML."""

__version__ = "0.1.0"
