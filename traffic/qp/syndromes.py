"""AETH syndromes (IBTA vol. 1, 9.7.5.1): what an acknowledge packet says."""

from __future__ import annotations

from typing import Final

from traffic.verbs import WcStatus

TYPE_MASK: Final = 0xE0
CODE_MASK: Final = 0x1F

ACK: Final = 0x00
RNR_NAK: Final = 0x20
NAK: Final = 0x60

ACK_NO_CREDIT_LIMIT: Final = 0x1F
"""ACK with the credit code for "end-to-end flow control not used"."""
NAK_PSN_SEQUENCE: Final = 0x60
NAK_INVALID_REQUEST: Final = 0x61
NAK_REMOTE_ACCESS: Final = 0x62
NAK_REMOTE_OPERATIONAL: Final = 0x63

ERROR_STATUS: Final = {
    NAK_INVALID_REQUEST: WcStatus.REM_INV_REQ_ERR,
    NAK_REMOTE_ACCESS: WcStatus.REM_ACCESS_ERR,
    NAK_REMOTE_OPERATIONAL: WcStatus.REM_OP_ERR,
    0x64: WcStatus.REM_INV_RD_REQ_ERR,
}
"""The NAKs that end a connection, and how its requester reports them."""
