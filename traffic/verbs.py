"""The vocabulary of libibverbs: work requests, completions, completion queues, states, counters."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields

from traffic.memory import Sge


class VerbsError(Exception):
    """A verb was used in a way that libibverbs refuses with an error number."""


class QueueFullError(VerbsError):
    """A work request did not fit: max_send_wr or max_recv_wr are outstanding (ENOMEM)."""


class QpType(enum.IntEnum):
    """Transport service; the value is the upper three bits of a BTH opcode."""

    RC = 0
    UC = 1


class QpState(enum.IntEnum):
    """``enum ibv_qp_state``, without SQD."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQE = 5
    ERR = 6


class WrOpcode(enum.IntEnum):
    """``enum ibv_wr_opcode``: what a send work request asks for."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3


class SendFlags(enum.IntFlag):
    """``enum ibv_send_flags``: SIGNALED asks for a completion, SOLICITED for a peer's event."""

    NONE = 0
    SIGNALED = 2
    SOLICITED = 4


class WcStatus(enum.IntEnum):
    """``enum ibv_wc_status``."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    BAD_RESP_ERR = 7
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    REM_INV_RD_REQ_ERR = 15

    @property
    def verbs_name(self) -> str:
        """The name as libibverbs prints it, e.g. ``IBV_WC_RETRY_EXC_ERR``."""
        return f"IBV_WC_{self.name}"


class WcOpcode(enum.IntEnum):
    """``enum ibv_wc_opcode``: what kind of work completed."""

    SEND = 0
    RDMA_WRITE = 1
    RECV = 128
    RECV_RDMA_WITH_IMM = 129


class AsyncEvent(enum.IntEnum):
    """``enum ibv_event_type``: what happens to a queue pair that no completion reports."""

    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    PATH_MIG = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SendWr:
    """``struct ibv_send_wr`` with at most one scatter/gather element (max_send_sge = 1).

    ``sge`` None sends a message of 0 bytes. ``imm_data`` is a 32-bit number and goes with the two
    WITH_IMM opcodes; ``remote_addr`` and ``rkey`` go with the two RDMA_WRITE opcodes.
    """

    wr_id: int
    opcode: WrOpcode
    sge: Sge | None = None
    remote_addr: int = 0
    rkey: int = 0
    imm_data: int | None = None
    send_flags: SendFlags = SendFlags.SIGNALED


@dataclass(frozen=True, slots=True, kw_only=True)
class RecvWr:
    """``struct ibv_recv_wr``: a buffer for one SEND, or a token for one WRITE with immediate."""

    wr_id: int
    sge: Sge | None = None


@dataclass(frozen=True, slots=True)
class WorkCompletion:
    """``struct ibv_wc``. ``byte_len`` and ``imm_data`` have meaning for received messages."""

    wr_id: int
    status: WcStatus
    opcode: WcOpcode
    qp_num: int
    byte_len: int = 0
    imm_data: int | None = None
    solicited: bool = False


class CompletionQueue:
    """A queue of work completions that several queue pairs may share.

    ``cqe`` is its capacity. Raises VerbsError from the verb that overruns it: a consumer that does
    not poll is a bug of the consumer, and hardware too gives up the queue at this point.
    """

    __slots__ = ("_completions", "cqe")

    def __init__(self, cqe: int = 1 << 20) -> None:
        self.cqe = cqe
        self._completions: deque[WorkCompletion] = deque()

    def push(self, completion: WorkCompletion) -> None:
        """Append a completion (for the NIC, not for the consumer)."""
        if len(self._completions) >= self.cqe:
            raise VerbsError(f"completion queue overrun: {self.cqe} completions not polled")
        self._completions.append(completion)

    def poll(self, max_entries: int = 1 << 30) -> list[WorkCompletion]:
        """Take out up to ``max_entries`` completions, oldest first."""
        queue = self._completions
        return [queue.popleft() for _ in range(min(max_entries, len(queue)))]

    def __len__(self) -> int:
        return len(self._completions)


@dataclass(slots=True)
class QpCounters:
    """What one queue pair sent and received. A *data packet* is one of a SEND or WRITE request.

    ``*_bytes`` count payload.
    Every data packet that arrived was delivered, was a duplicate, was discarded, or is being held
    until a gap closes: received = delivered + duplicate + discarded + held.
    """

    sent_packets: int = 0
    """Data packets sent, resent ones included."""
    sent_bytes: int = 0
    retransmitted_packets: int = 0
    retransmitted_bytes: int = 0
    received_packets: int = 0
    """Data packets that arrived in a state that receives, whatever became of them."""
    received_bytes: int = 0
    delivered_packets: int = 0
    """Data packets executed, each once and in order: goodput."""
    delivered_bytes: int = 0
    duplicate_packets: int = 0
    out_of_sequence_packets: int = 0
    """Data packets that arrived ahead of the expected PSN, held or discarded."""
    out_of_order_packets: int = 0
    """Those of them that were not being held already."""
    discarded_packets: int = 0
    """Data packets refused: out of sequence and not held, not ready, in error, broken message."""
    acks_sent: int = 0
    acks_received: int = 0
    naks_sent: int = 0
    """NAKs for a PSN sequence error."""
    naks_received: int = 0
    rnr_naks_sent: int = 0
    rnr_naks_received: int = 0
    error_naks_sent: int = 0
    """NAKs that end the connection: invalid request, remote access, remote operational."""
    error_naks_received: int = 0
    timeouts: int = 0
    """Times the local ACK timeout expired."""
    retries: int = 0
    """Timeouts answered by a retransmission (not by giving up)."""
    path_migrations: int = 0
    """Times it went on from another port of its NIC."""

    def items(self) -> Iterator[tuple[str, int]]:
        """Names and values, in the order above."""
        for field in fields(self):
            yield field.name, getattr(self, field.name)

    def as_dict(self) -> dict[str, int]:
        """Names and values."""
        return dict(self.items())
