"""Python imports this when it starts, here and in every process below: no network for notebooks."""

import socket

connect = socket.socket.connect


def guarded(self: socket.socket, address):
    host = address[0] if isinstance(address, tuple) else "localhost"  # else a Unix socket's path
    if host not in {"localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()}:
        raise ConnectionError(f"notebooks run offline, and this one connects to {host}")
    connect(self, address)


socket.socket.connect = guarded
