"""The import seam, and the messages as Open vSwitch's own decoder reads them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from typing import Any

import pytest

from controllers import messages, sdn
from controllers.entries import (
    TAGGED,
    DecrementTtl,
    Drop,
    Entry,
    GotoTable,
    HashAlgorithm,
    HashFields,
    LoadRegister,
    MoveVlanToRegister,
    Multipath,
    Output,
    PopVlan,
    SetEthDst,
    SetEthSrc,
)


@pytest.fixture
def datapath() -> Any:
    return sdn.ofproto_protocol.ProtocolDesc(version=sdn.ofproto_v1_3.OFP_VERSION)


def decode(message: Any) -> str:
    """One message in words, by ovs-ofctl, which needs no switch for it."""
    if shutil.which("ovs-ofctl") is None:
        pytest.skip("ovs-ofctl is not installed")
    if message.xid is None:
        message.set_xid(1)
    message.serialize()
    result = subprocess.run(
        ["ovs-ofctl", "ofp-print", bytes(message.buf).hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.replace("\n", " ")


def test_choice_of_library(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"os_ken"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name in present else None
    )
    assert sdn.choose(None) == "os-ken"
    assert sdn.choose("os-ken") == "os-ken"
    with pytest.raises(ImportError, match="ryu is not installed"):
        sdn.choose("ryu")
    with pytest.raises(ImportError, match="'pox' is unknown; allowed: os-ken, ryu"):
        sdn.choose("pox")
    present |= {"ryu"}
    assert sdn.choose(None) == "os-ken"
    assert sdn.choose("ryu") == "ryu"
    present -= {"os_ken"}
    assert sdn.choose(None) == "ryu"
    present.clear()
    with pytest.raises(ImportError, match="no OpenFlow library: os-ken or ryu"):
        sdn.choose(None)


def test_forwarding_entry(datapath: Any) -> None:
    entry = Entry(
        0,
        1032,
        {"eth_type": 0x0800, "ipv4_dst": "10.1.0.1/32"},
        (
            DecrementTtl(),
            SetEthSrc("02:01:00:00:00:01"),
            SetEthDst("02:00:0a:01:00:01"),
            Output(7),
        ),
    )
    text = decode(messages.add(datapath, entry))
    assert "OFPT_FLOW_MOD (OF1.3)" in text
    assert (
        "ADD priority=1032,ip,nw_dst=10.1.0.1 actions=dec_ttl,set_field:02:01:00:00:00:01->eth_src,"
        "set_field:02:00:0a:01:00:01->eth_dst,output:7" in text
    )


def test_multipath_entry(datapath: Any) -> None:
    select = Multipath(HashFields.SYMMETRIC_L3L4_UDP, 42910, HashAlgorithm.MODULO_N, 4, 0)
    entry = Entry(
        0,
        1016,
        {"eth_type": 0x0800, "ipv4_dst": "10.2.0.0/16"},
        (LoadRegister(1, 5), select, GotoTable(1)),
    )
    text = decode(messages.add(datapath, entry))
    assert "ip,nw_dst=10.2.0.0/16" in text
    assert (
        "actions=set_field:0x5->reg1,"
        "multipath(symmetric_l3l4+udp,42910,modulo_n,4,0,NXM_NX_REG0[0..15]),goto_table:1" in text
    )


@pytest.mark.parametrize("algorithm", list(HashAlgorithm))
@pytest.mark.parametrize("fields", list(HashFields))
def test_hash_names_are_those_of_open_vswitch(
    datapath: Any, fields: HashFields, algorithm: HashAlgorithm
) -> None:
    entry = Entry(0, 1, {}, (Multipath(fields, 1, algorithm, 256, 2), GotoTable(1)))
    text = decode(messages.add(datapath, entry))
    assert f"multipath({fields.value},1,{algorithm.value},256,0,NXM_NX_REG2[0..15])" in text


def test_member_entry_matches_registers_in_its_table(datapath: Any) -> None:
    entry = Entry(1, 1, {"reg0": 2, "reg1": 5}, (Output(9),))
    text = decode(messages.add(datapath, entry))
    assert "table:1" in text
    assert "reg0=0x2,reg1=0x5" in text


def test_labels_are_read_and_removed(datapath: Any) -> None:
    select = (LoadRegister(1, 5), MoveVlanToRegister(0, 6, 6), GotoTable(1))
    text = decode(messages.add(datapath, Entry(0, 1, {}, select)))
    assert "move:OXM_OF_VLAN_VID[6..11]->NXM_NX_REG0[0..5],goto_table:1" in text
    match = {"eth_type": 0x0800, "ipv4_dst": "10.1.0.1/32", "vlan_vid": TAGGED}
    text = decode(messages.add(datapath, Entry(0, 1033, match, (PopVlan(), Output(7)))))
    assert "ip,vlan_tci=0x1000/0x1000,nw_dst=10.1.0.1 actions=pop_vlan,output:7" in text


def test_drop_entry_has_no_instruction(datapath: Any) -> None:
    text = decode(messages.add(datapath, Entry(0, 0, {}, (Drop(),))))
    assert "priority=0 actions=drop" in text


def test_bundles_are_ordered_and_atomic(datapath: Any) -> None:
    add = messages.add(datapath, Entry(0, 1, {}, (Output(1),)))
    texts = {
        "OPEN_REQUEST": decode(messages.open_bundle(datapath, 6)),
        "DEL table:255": decode(messages.in_bundle(datapath, 6, messages.delete_all(datapath))),
        "ADD priority=1 actions=output:1": decode(messages.in_bundle(datapath, 6, add)),
        "COMMIT_REQUEST": decode(messages.commit_bundle(datapath, 6)),
        "DISCARD_REQUEST": decode(messages.discard_bundle(datapath, 6)),
    }
    for what, text in texts.items():
        assert what in text
        assert "bundle_id=0x6" in text
        assert "atomic ordered" in text


def test_an_instruction_is_not_an_action(datapath: Any) -> None:
    with pytest.raises(ValueError, match="GotoTable"):
        messages.action(datapath, GotoTable(1))
