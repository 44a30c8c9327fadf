"""A port for processes that must meet, held from the moment it is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import TCPStore  # type: ignore[attr-defined]


@contextmanager
def rendezvous() -> Iterator[dict[str, str]]:
    """The environment of ranks that meet at a store of this process, as torchrun's agent hosts one: the system chose
    its port, and no other process can take it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    del store
