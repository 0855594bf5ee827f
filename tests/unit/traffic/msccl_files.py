"""MSCCL algorithms as msccl-tools writes them, for tests."""

from __future__ import annotations


def step(index, kind, source, destination, *, depid=-1, deps=-1, count=1, hasdep=0):
    (srcbuf, srcoff), (dstbuf, dstoff) = source, destination
    return (
        f'<step s="{index}" type="{kind}" srcbuf="{srcbuf}" srcoff="{srcoff}" dstbuf="{dstbuf}" '
        f'dstoff="{dstoff}" cnt="{count}" depid="{depid}" deps="{deps}" hasdep="{hasdep}"/>'
    )


def threadblock(index, send, receive, channel, steps):
    return f'<tb id="{index}" send="{send}" recv="{receive}" chan="{channel}">{"".join(steps)}</tb>'


def algorithm(coll, gpus, *, chunks, inplace=1, buffers=None):
    i, o, s = buffers or (chunks, 0, 0)
    body = "".join(
        f'<gpu id="{g}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">{"".join(blocks)}</gpu>'
        for g, blocks in enumerate(gpus)
    )
    return (
        f'<algo name="test" proto="Simple" nchannels="1" nchunksperloop="{chunks}" '
        f'ngpus="{len(gpus)}" coll="{coll}" inplace="{inplace}">{body}</algo>'
    ).encode()


def ring_all_reduce(ranks, channels=1):
    """The steps of msccl-tools' allreduce_ring: s, rrs ..., rrcs, rcs ..., r."""
    gpus = []
    for rank in range(ranks):
        blocks = []
        for channel in range(channels):
            kinds = ["s", *["rrs"] * (ranks - 2), "rrcs", *["rcs"] * (ranks - 2), "r"]
            steps = []
            for index, kind in enumerate(kinds):
                chunk = ("i", (rank - index) % ranks * channels + channel)
                steps.append(step(index, kind, chunk, chunk))
            blocks.append(
                threadblock(channel, (rank + 1) % ranks, (rank - 1) % ranks, channel, steps)
            )
        gpus.append(blocks)
    return algorithm("allreduce", gpus, chunks=ranks * channels)


def ring_all_gather(ranks):
    gpus = []
    for rank in range(ranks):
        kinds = ["s", *["rcs"] * (ranks - 2), "r"]
        chunks = [("o", (rank - index) % ranks) for index in range(ranks)]
        steps = [step(i, kind, chunks[i], chunks[i]) for i, kind in enumerate(kinds)]
        gpus.append([threadblock(0, (rank + 1) % ranks, (rank - 1) % ranks, 0, steps)])
    return algorithm("allgather", gpus, chunks=ranks, buffers=(0, ranks, 0))


def direct_all_to_all(ranks):
    gpus = []
    for rank in range(ranks):
        copy = step(0, "cpy", ("i", rank), ("o", rank))
        blocks = [threadblock(0, -1, -1, 0, [copy])]
        for peer in (p for p in range(ranks) if p != rank):
            both = [
                step(0, "s", ("i", peer), ("o", rank)),
                step(1, "r", ("i", peer), ("o", peer)),
            ]
            blocks.append(threadblock(len(blocks), peer, peer, 0, both))
        gpus.append(blocks)
    return algorithm("alltoall", gpus, chunks=ranks, inplace=0, buffers=(ranks, ranks, 0))


def pairwise_all_reduce(*, wait=True):
    """Two GPUs swap their input through scratch; one threadblock receives, another adds."""
    gpus = []
    for rank in range(2):
        swap = [
            step(0, "s", ("i", 0), ("s", 0)),
            step(1, "r", ("i", 0), ("s", 0), hasdep=1),
        ]
        wait_for = {"depid": 0, "deps": 1} if wait else {}
        add = [
            '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" '
            f'depid="{wait_for.get("depid", -1)}" deps="{wait_for.get("deps", -1)}" hasdep="0"/>',
            step(1, "re", ("s", 0), ("i", 0)),
        ]
        gpus.append([threadblock(0, 1 - rank, 1 - rank, 0, swap), threadblock(1, -1, -1, 0, add)])
    return algorithm("allreduce", gpus, chunks=1, buffers=(1, 0, 1))
