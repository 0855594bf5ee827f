"""Traces are opened whatever their format, and scaled."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from chakra_files import COLL, et, node

from traffic.replay import NodeKind, TraceError, TraceOptions, load_trace, trace_formats

TEXT = b"DATA\n1\nfc -1 100 NONE 0 100 NONE 0 100 ALLREDUCE 4096 10\n"
FLOWS = b"1\n0 1 3 100 20000 2.0\n"
MSCCL = b"""<algo name="broadcast" nchunksperloop="1" ngpus="2" coll="broadcast" inplace="1">
<gpu id="0" i_chunks="0" o_chunks="1" s_chunks="0"><tb id="0" send="1" recv="-1" chan="0">
<step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1"/></tb></gpu>
<gpu id="1" i_chunks="0" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="0" chan="0">
<step s="0" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1"/></tb></gpu></algo>
"""


def write(directory, name, data):
    path = directory / name
    path.write_bytes(data)
    return path


def test_all_formats_are_there():
    assert trace_formats() == ["chakra", "flows", "msccl", "text"]


@pytest.mark.parametrize("which", ["file", "prefix", "directory"])
def test_chakra_traces_by_file_prefix_or_directory(tmp_path, which):
    data = et(node(1, COLL, "ar", comm_size=1000))
    write(tmp_path, "all_reduce.0.et", data)
    second = write(tmp_path, "all_reduce.1.et.gz", gzip.compress(data))
    write(tmp_path, "readme.txt", b"not a trace")
    path = {"file": second, "prefix": tmp_path / "all_reduce", "directory": tmp_path}[which]
    trace = load_trace(path, options=TraceOptions(size_scale=0.25, time_scale=2))
    assert [nodes[0].size for nodes in trace.ranks] == [250, 250]
    assert (trace.size_scale, trace.time_scale) == (0.25, 2)


def test_other_formats_are_guessed(tmp_path):
    two = TraceOptions(world_size=2)
    text = load_trace(write(tmp_path, "a.txt", TEXT), options=two)
    assert text.ranks[1][2].kind is NodeKind.COLLECTIVE
    packed = write(tmp_path, "a.txt.gz", gzip.compress(TEXT))
    assert load_trace(packed, options=two).ranks == text.ranks
    flows = load_trace(write(tmp_path, "flows.txt", FLOWS), options=two)
    assert flows.ranks[0][0].size == 20000
    algorithm = write(tmp_path, "a.xml", MSCCL)
    assert load_trace(algorithm, options=TraceOptions(size=64)).ranks[0][0].size == 64


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.txt", TEXT, {}, "does not say how many ranks"),
        ("a.txt", FLOWS, {}, "give the world size"),
        ("a.xml", MSCCL, {}, "give the size"),
        ("a.xml", MSCCL.replace(b'srcoff="0"', b'srcoff="7"', 1), {"size": 8}, "gpu 0, tb 0"),
        ("a.txt", b"DIAGONAL\n1\n", {"world_size": 2}, "line 1: parallelism 'DIAGONAL'"),
        ("a.0.et", et(node(1, COLL)), {}, "without comm_size"),
        ("a.txt", TEXT, {"world_size": 2, "size_scale": 0}, "scale of size"),
    ],
)
def test_errors_are_one_line(tmp_path, name, data, options, message):
    path = write(tmp_path, name, data)
    with pytest.raises(TraceError) as error:
        load_trace(path, options=TraceOptions(**options))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_there(tmp_path):
    with pytest.raises(TraceError, match=r"nothing: no files <prefix>\.<rank>\.et"):
        load_trace(tmp_path / "nothing")
    with pytest.raises(TraceError, match="unknown trace format 'goal'; allowed: chakra, flows"):
        load_trace(tmp_path, trace_format="goal")


@pytest.mark.parametrize("name", ["pipe", "pipe.0.et", "pipe.xml"])
def test_a_pipe_or_a_device_is_not_read(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for path in (tmp_path / name, Path("/dev/zero")):
        with pytest.raises(TraceError, match=f"{path}: is no file"):
            load_trace(path, options=TraceOptions(world_size=2, size=64))
