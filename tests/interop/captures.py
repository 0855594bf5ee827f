"""The captures under tests/data: real RoCEv2 traffic of Linux' software RDMA driver (rxe)."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
VECTORS = json.loads((DATA / "icrc_vectors.json").read_text())


def capture(name: str) -> Path:
    """The capture of that name, without suffix."""
    return DATA / "captures" / f"{name}.pcap"
