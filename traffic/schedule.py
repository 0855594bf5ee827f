"""The graph of a plan's operations across ranks: who matches whom, and an order that works."""

from __future__ import annotations

from itertools import accumulate

from traffic.plan import OpKind, Plan, PlanError

OpKey = tuple[int, int]
"""(rank, op_id)"""


def match_messages(plan: Plan) -> dict[OpKey, OpKey]:
    """The SEND of each RECEIVE, and the LOCAL_SEND of each LOCAL_RECEIVE.

    Raises PlanError when either has no or several other ends.
    """
    return _match_network_messages(plan) | _match_local_messages(plan)


def _match_local_messages(plan: Plan) -> dict[OpKey, OpKey]:
    sends: dict[tuple[int, int, int], OpKey] = {}
    receives: dict[tuple[int, int, int], OpKey] = {}
    for ops in plan.ops:
        for op in ops:
            if op.kind is OpKind.LOCAL_SEND:
                side, message = sends, (op.rank, op.peer, op.tag)
            elif op.kind is OpKind.LOCAL_RECEIVE:
                side, message = receives, (op.peer, op.rank, op.tag)
            else:
                continue
            if message in side:
                raise PlanError(f"{op} has the tag of another {op.kind}")
            side[message] = op.rank, op.op_id
    if alone := sends.keys() ^ receives.keys():
        raise PlanError(f"local message without other end: {min(alone)}")
    return {receives[message]: sends[message] for message in receives}


def _match_network_messages(plan: Plan) -> dict[OpKey, OpKey]:
    sends: dict[tuple[int, int], OpKey] = {}
    receives: dict[tuple[int, int], OpKey] = {}
    for ops in plan.ops:
        for op in ops:
            side = {OpKind.SEND: sends, OpKind.RECEIVE: receives}.get(op.kind)
            if side is None:
                continue
            connection = plan.connections[op.connection]
            ends = connection.source_rank, connection.destination_rank
            if op.rank != ends[op.kind is OpKind.RECEIVE]:
                raise PlanError(f"{op} is on a connection of ranks {ends}")
            if (op.connection, op.tag) in side:
                raise PlanError(f"{op} has the tag of another {op.kind}")
            side[op.connection, op.tag] = op.rank, op.op_id
    for message, (rank, op_id) in sends.items():
        operation = plan.ops[rank][op_id].operation
        notifies = operation is not None and operation.notifies_receiver
        if notifies != (message in receives):
            raise PlanError(f"tag {message[1]} of connection {message[0]}: SEND without RECEIVE")
    if not receives.keys() <= sends.keys():
        raise PlanError(f"RECEIVE without SEND: {min(receives.keys() - sends.keys())}")
    return {receives[message]: sends[message] for message in receives}


def execution_order(plan: Plan) -> list[OpKey]:
    """All operations in an order in which they can complete.

    A RECEIVE comes after its SEND. Raises PlanError when operations wait for each other.
    """
    keys = [(rank, op_id) for rank, ops in enumerate(plan.ops) for op_id in range(len(ops))]
    base = list(accumulate((len(ops) for ops in plan.ops), initial=0))
    unmet = [0] * len(keys)
    # Plans have up to half a million operations, for which lists of edges would cost too much:
    # first[operation] and following[edge] are edges, -1 at the end.
    first = [-1] * len(keys)
    following: list[int] = []
    target: list[int] = []

    def edge(number: int, dependent: int) -> None:
        following.append(first[number])
        first[number] = len(target)
        target.append(dependent)
        unmet[dependent] += 1

    for rank, ops in enumerate(plan.ops):
        begin = base[rank]
        for op in ops:
            for needed in set(op.depends_on):
                edge(begin + needed, begin + op.op_id)
    for (rank, op_id), (sender, send) in match_messages(plan).items():
        edge(base[sender] + send, base[rank] + op_id)
    order = [number for number, count in enumerate(unmet) if count == 0]
    for number in order:  # grows while it is walked: a queue
        at = first[number]
        while at >= 0:
            dependent = target[at]
            unmet[dependent] -= 1
            if unmet[dependent] == 0:
                order.append(dependent)
            at = following[at]
    if len(order) != len(keys):
        rank, op_id = keys[next(number for number, count in enumerate(unmet) if count)]
        raise PlanError(f"operations wait for each other: {plan.ops[rank][op_id]}")
    return [keys[number] for number in order]
