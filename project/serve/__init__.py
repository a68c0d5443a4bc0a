"""What ``lightning serve`` does: HTTP in one process, the model in others, images between them."""
