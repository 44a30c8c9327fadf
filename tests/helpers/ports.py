"""A port for processes that must meet."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody listens on, drawn by the system: two tests at the same moment get two."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
