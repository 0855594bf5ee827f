"""The independent checker agrees with captures, reads every file format, and finds damage."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from scapy.utils import rdpcap, wrpcap, wrpcapng

from tests.interop import icrc_check
from tests.interop.captures import CAPTURES, VECTORS, capture

TOOL = icrc_check.__file__


def run(*paths):
    command = [sys.executable, TOOL, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captures_are_good(path):
    count, bad = icrc_check.check(path.read_bytes())
    assert count == len(rdpcap(str(path)))
    assert bad == []


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector):
    packet = bytes.fromhex(vector["frame_hex"])
    if vector["starts_at"] == "ethernet":
        packet = icrc_check.roce_packet(packet)
    right = packet is not None and icrc_check.icrc_is_right(packet)
    assert right == vector["expect_valid"]


@pytest.mark.parametrize("endianness", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_classic_formats(tmp_path, endianness, nano):
    path = tmp_path / "x.pcap"
    frames = rdpcap(str(capture("verbs_all_ops")))
    wrpcap(str(path), frames, endianness=endianness, nano=nano, linktype=1)
    assert icrc_check.check(path.read_bytes()) == (len(frames), [])


def test_pcapng(tmp_path):
    path = tmp_path / "x.pcapng"
    frames = rdpcap(str(capture("verbs_all_ops")))
    wrpcapng(str(path), frames)
    assert icrc_check.check(path.read_bytes()) == (len(frames), [])


def test_command_line(tmp_path):
    good = capture("verbs_psn_wrap")
    result = run(good)
    assert (result.returncode, result.stdout) == (0, "9 frames, 0 bad\n")
    damaged = bytearray(good.read_bytes())
    damaged[-5] ^= 1
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(damaged)
    result = run(bad)
    assert (result.returncode, result.stdout) == (1, "9 frames, 1 bad\n")
    assert "bad: 9" in result.stderr


def test_snapped_frames_are_bad(tmp_path):
    path = tmp_path / "snapped.pcap"
    data = capture("verbs_nak_remote_access").read_bytes()
    (captured,) = struct.unpack_from("<I", data, 24 + 8)
    cut = data[:32] + struct.pack("<I", 100) + data[36:140] + data[40 + captured :]
    path.write_bytes(cut)
    assert icrc_check.check(cut) == (2, [1])


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xd4\xc3\xb2\xa1" + bytes(20)])
def test_unreadable_files(tmp_path, content):
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    result = run(path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_no_roce_frame_is_no_success(tmp_path):
    path = tmp_path / "x.pcap"
    path.write_bytes(capture("verbs_psn_wrap").read_bytes()[:24])
    result = run(path)
    assert (result.returncode, result.stdout) == (2, "0 frames, 0 bad\n")


def test_a_cut_off_file_is_an_error():
    with pytest.raises(icrc_check.CaptureError, match="cut off"):
        icrc_check.check(capture("verbs_psn_wrap").read_bytes()[:-1])
