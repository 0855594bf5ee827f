"""Scenario files: defaults, units, overrides, variants, and one clear line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.overrides import OverrideError, apply_overrides
from testbed.scenario import (
    DEFAULT_VARIANT,
    ScenarioError,
    build_topology,
    evaluate_expectations,
    find_scenario,
    load_scenario,
    plan_traffic,
    resolve_variants,
    scenario_files,
)

MINIMAL = """
name: small
topology: {kind: leaf-spine}
workload: {kind: incast, senders: 3, message_size: 64 KiB}
"""

VARIANTS = """
variants:
  - name: go-back-n
    set: {nic.recovery: go-back-n}
  - name: selective-repeat
    set: {nic.recovery: selective-repeat, seed: 7}
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text: str = MINIMAL, name: str = "small.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_defaults_and_units(write) -> None:
    scenario = load_scenario(
        write(
            MINIMAL
            + "time_limit: 20 ms\nswitch: {buffer: {limit: 300 KB}, ecn: {threshold: 100 KiB}}"
        )
    )
    assert scenario.seed == 1
    assert scenario.dilation == "auto"
    assert scenario.time_limit == pytest.approx(0.02)
    assert scenario.switch.buffer.limit == 300_000
    assert scenario.switch.ecn.threshold == 102_400
    assert (scenario.nic.transport, scenario.nic.recovery, scenario.nic.timeout) == (
        "rc", "go-back-n", 14,
    )  # fmt: skip
    assert scenario.routing.scheme == "ecmp"
    assert scenario.workload.parameters.message_size == 65536
    topology = build_topology(scenario)
    assert len(topology.ranks) == 8
    connections = plan_traffic(scenario, topology).connections
    assert [connection.source_rank for connection in connections] == [1, 2, 3]


def test_infinite_buffer_and_uc(write) -> None:
    scenario = load_scenario(write(), ["switch.buffer.limit=infinite", "nic.transport=uc"])
    assert scenario.switch.buffer.limit is None
    assert scenario.nic.recovery == "none"


def test_resolved_scenario_is_plain_json(write) -> None:
    document = load_scenario(write(MINIMAL + VARIANTS)).model_dump(mode="json")
    assert document["topology"]["kind"] == "leaf-spine"
    assert document["topology"]["link_rate"] == 400e9
    assert document["workload"]["message_size"] == 65536
    assert document["routing"]["scheme"] == "ecmp"
    assert "parameters" not in document["workload"]


def test_variants_are_complete_scenarios(write) -> None:
    scenario = load_scenario(write(MINIMAL + VARIANTS), ["nic.timeout=10"])
    (first, a), (second, b) = resolve_variants(scenario)
    assert (first, second) == ("go-back-n", "selective-repeat")
    assert (a.nic.recovery, a.seed, a.nic.timeout) == ("go-back-n", 1, 10)
    assert (b.nic.recovery, b.seed, b.nic.timeout) == ("selective-repeat", 7, 10)
    assert a.variants == () and a.expect == ()


def test_a_scenario_without_variants_is_its_own(write) -> None:
    ((name, only),) = resolve_variants(load_scenario(write()))
    assert name == DEFAULT_VARIANT
    assert only.workload.parameters.senders == 3


def test_same_file_and_seed_give_the_same_plan(write) -> None:
    def plan_hash(*overrides: str) -> str:
        scenario = load_scenario(write(), overrides)
        return plan_traffic(scenario, build_topology(scenario)).plan_hash()

    assert plan_hash() == plan_hash()
    assert plan_hash() != plan_hash("seed=2")


def test_capture_adds_to_the_file(write) -> None:
    path = write(MINIMAL + "capture: [leaf1-spine1]")
    assert load_scenario(path, capture=["leaf1-rank0"]).capture == ("leaf1-spine1", "leaf1-rank0")


def test_expectations_are_judged(write) -> None:
    scenario = load_scenario(write(MINIMAL + "expect: [dropped_packets == 0, naks < 2]"))
    outcomes = evaluate_expectations(scenario, {"default": {"dropped_packets": 0, "naks": 5}})
    assert [outcome.passed for outcome in outcomes] == [True, False]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("topology.leafs=3", "topology.leafs: unknown field; did you mean 'leaves'?"),
        ("nic.timout=3", "nic.timout: unknown field; did you mean 'timeout'?"),
        ("workload.mesage_size=3", "workload.mesage_size: unknown field; did you mean"),
        ("sead=3", "sead: unknown field; did you mean 'seed'?"),
        ("workload.message_size=-5", "workload.message_size: -5 must not be negative"),
        ("workload.message_size=-5 KB", "workload.message_size: '-5 KB' must not be negative"),
        ("workload.message_size=0", "workload.message_size: 0 must be greater than 0"),
        ("workload.message_size=5 parsecs", "no known unit; allowed: B, KB"),
        ("topology.leaves=true", "topology.leaves: True must be a valid integer"),
        ("topology.leaves='2'", "topology.leaves: '2' must be a valid integer"),
        ("topology.leaves=2024-01-01", "holds more than text, numbers, true or false, lists"),
        ("topology.oversubscription=1:7", "a number to the base 60 in YAML; allowed: a decimal"),
        ("workload.senders=8", "workload.senders: 8; allowed: 'all' or 1 to 7"),
        ("workload.kind=outcast", "workload.kind: 'outcast' is not known; did you mean 'incast'?"),
        ("workload.kind=null", "workload.kind: None is not known; allowed: all-to-all, "),
        ("routing.scheme=ecmpp", "routing.scheme: 'ecmpp' is not known; did you mean 'ecmp'?"),
        ("nic.recovery=gbn", "nic.recovery: 'gbn' is not known for transport rc; allowed: go-b"),
        ("nic={transport: uc, recovery: go-back-n}", "not known for transport uc; allowed: none"),
        ("nic.recovery=none", "nic.recovery: 'none' is not known for transport rc"),
        ("topology.servers_per_leaf=300", "topology.servers_per_leaf: 300 servers of 1 GPU(s)"),
        ("topology.servers_per_leaf=0", "topology.servers_per_leaf: 0 must be greater than"),
        ("topology.link_rate=400", "topology.link_rate: 400 has no unit"),
        ("topology.hop_latency=100", "topology.hop_latency: 100 has no unit"),
        ("topology=leaf-spine", "topology: 'leaf-spine' is not a mapping with 'kind'"),
        ("dilation=0", "dilation: 0 must be 'auto' or above 0"),
        ("dilation=-3", "dilation: -3 must be 'auto' or above 0"),
        ("dilation=fast", "dilation: 'fast' is neither 'auto' nor a number"),
        ("dilation=.nan", "dilation: nan must be"),
        ("dilation=.inf", "dilation: inf must be"),
        ("dilation=true", "dilation: True is neither"),
        ("time_limit=3", "time_limit: 3 has no unit"),
        ("time_limit=0 s", "time_limit: 0.0 must be greater than 0"),
        ("seed=-1", "seed: -1 must be greater than or equal to 0"),
        ("seed=true", "seed: True must be a valid integer"),
        ("seed=1.5", "seed: 1.5 must be a valid integer"),
        ("nic.timeout=32", "nic.timeout: 32 must be less than or equal to 31"),
        ("nic.path_mtu=1000", "nic.path_mtu: 1000 must be 256, 512, 1024, 2048 or 4096"),
        ("nic=null", "nic: None is not a mapping"),
        ("switch.buffer.limit=0", "switch.buffer.limit: 0 must be above 0, or 'infinite'"),
        ("switch.buffer.policy=dynamic", "switch.buffer.policy: 'dynamic' must be 'static'"),
        ("faults.loss=1.5", "faults.loss: 1.5 must be less than 1"),
        ("faults.loss=.nan", "faults.loss: nan must be a finite number"),
        ("faults.drop=[{connection: 3, psn_offset: 0}]", "faults.drop.0.connection: 3 is not one"),
        ("faults.drop=[{connection: 0}]", "faults.drop.0.psn_offset: this field is required"),
        ("capture=[leaf1-spine9]", "capture.0: 'leaf1-spine9' is no interface; did you mean"),
        ("telemetry.interval=0 s", "telemetry.interval: '0 s' must be above 0, or 'auto'"),
        ("name=../evil", "name: '../evil' string should match pattern"),
        ("expect=[dropped > 1]", "expect.0: 'dropped > 1': unknown metric 'dropped'; did you mean"),
        ("expect=[x.naks > 1]", "expect.0: 'x.naks > 1': unknown variant 'x'"),
        ("expect=naks > 1", "expect: 'naks > 1' must be a list"),
        ("routing={scheme: static, paths: []}", "routing.paths: unknown field; allowed: none"),
        (
            "routing={scheme: ecmp, per_switch_seed: 3}",
            "routing.per_switch_seed: 3 must be true or false",
        ),
        (
            "topology={kind: leaf-spine, oversubscription: '1:7'}",
            "topology.oversubscription: '1:7' is no number; write capacity down over capacity up",
        ),
        (
            "workload={kind: collective, operation: read}",
            "workload.operation: 'read' must be 'write-with-imm', 'send' or 'send-with-imm'",
        ),
        ("variants=[{name: all}]", "variants.0.name: 'all' cannot name a variant"),
        ("variants=[{name: a b}]", "variants.0.name: 'a b' cannot name a variant"),
        ("variants=[{name: a}, {name: a}]", "variants: 'a' names two variants"),
        ("variants=[{name: a, set: {nic.timout: 1}}]", "variants.a: nic.timout: unknown field"),
        ("variants=[{name: a, set: {expect: []}}]", "variants.a: expect cannot differ by variant"),
        ("variants=[{name: a, set: {name.x: 1}}]", "variants.a: name.x cannot differ by variant"),
        ("variants=[{name: a, set: {seed.x: 1}}]", "variants.a: seed.x: unknown field"),
        (
            "variants=[{name: a}, {name: b, set: {workload.senders: 8}}]",
            "variants.b: workload.senders: 8; allowed",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(write, override: str, message: str) -> None:
    path = write(MINIMAL + "seed: 1\n")
    if "seed.x" in override:
        message = "variants.a: seed.x: seed is 1, which has no fields"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, [override])
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_several_mistakes_are_counted(write) -> None:
    with pytest.raises(ScenarioError, match=r"nic\.timeout: .* \(and 2 more\)$"):
        load_scenario(write(), ["nic={timeout: 99, retry_cnt: 9, rnr_retry: 9}"])


def test_a_missing_section_is_named(write) -> None:
    with pytest.raises(ScenarioError, match="workload: this field is required"):
        load_scenario(write("name: x\ntopology: {kind: leaf-spine}"))


def test_work_that_needs_no_network_is_refused(write) -> None:
    text = """
name: small
topology: {kind: leaf-spine, leaves: 1, spines: 0, servers_per_leaf: 1, gpus_per_server: 4}
workload: {kind: collective, algorithm: ring, size: 64 KiB, gpus_per_server: 4}
"""
    for assignments in ([], ["workload.gpus_per_server=null"]):
        with pytest.raises(ScenarioError, match="workload: collective sends nothing over the net"):
            load_scenario(write(text), assignments)
    assert load_scenario(write(text), ["workload.gpus_per_server=1"]).name == "small"


def test_yaml_mistakes_name_the_file(write) -> None:
    path = write("a: 1\na: 2")
    with pytest.raises(ScenarioError, match=f"^{path}: line 2: key 'a' is given twice$"):
        load_scenario(path)


def test_a_scenario_is_found_by_name(tmp_path, monkeypatch) -> None:
    assert find_scenario("incast").name == "incast.yaml"
    monkeypatch.chdir(tmp_path)
    assert find_scenario("incast").is_absolute()
    with pytest.raises(ScenarioError, match=r"incst: there is no such .* did you mean 'incast'"):
        find_scenario("incst")


@pytest.mark.parametrize("name", sorted(scenario_files()))
def test_scenarios_of_the_project(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert 2 <= len(scenario.description.strip().splitlines()) <= 6
    assert len(scenario.description.splitlines()[0]) <= 60, "does not fit into `rocelab list`"
    assert any("ledger_open == 0" in text for text in scenario.expect)
    assert any("verdict != invalid" in text for text in scenario.expect)


def test_main_job_is_the_incast_that_the_project_promises() -> None:
    scenario = load_scenario("incast")
    (_, a), (_, b) = resolve_variants(scenario)
    topology = build_topology(scenario)
    plan = plan_traffic(scenario, topology)
    assert {a.nic.recovery, b.nic.recovery} == {"go-back-n", "selective-repeat"}
    assert len({c.source_rank for c in plan.connections}) >= 7
    assert {c.destination_rank for c in plan.connections} == {0}
    assert topology.nic(0).rate == 400e9
    assert scenario.switch.buffer.limit is not None
    # what the port serves while all of them arrive at line rate leaves as well
    served = plan.payload_bytes / len(plan.flows)
    assert plan.payload_bytes - served > 1.1 * scenario.switch.buffer.limit


def test_document_round_trip(write) -> None:
    path = write(MINIMAL + VARIANTS)
    assert load_scenario(path).document == yaml.safe_load(path.read_text())


FIELDS = [
    "name", "description", "seed", "dilation", "time_limit", "topology", "topology.kind",
    "topology.leaves", "topology.spines", "topology.servers_per_leaf", "topology.link_rate",
    "switch", "switch.buffer", "switch.buffer.policy", "switch.buffer.limit",
    "switch.ecn.threshold", "routing", "routing.scheme", "routing.hash_seed", "nic",
    "nic.transport", "nic.recovery", "nic.path_mtu", "nic.timeout", "nic.send_window",
    "nic.source_port_policy", "nic.qps_per_connection", "nic.message_strategy",
    "nic.source_ports", "nic.flowlet_gap", "nic.reordering_threshold",
    "nic.reordering_timeout", "workload.flows", "workload.ranks", "workload", "workload.kind",
    "workload.senders", "workload.receiver", "workload.message_size", "workload.messages",
    "workload.start_jitter",
    "workload.operation", "faults", "faults.drop", "faults.loss", "faults.links",
    "faults.switches", "faults.flaps", "faults.slow", "faults.detection", "capture",
    "telemetry.interval", "variants", "expect", "unknown", "nic.unknown",
]  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1 us", "3 KB", "100 Gbps", "auto", "infinite", "static", "uc", "naks > 1"])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=2)
    | st.dictionaries(st.sampled_from(["kind", "name", "set", "connection"]), SCALARS, max_size=3)
    | st.lists(st.dictionaries(st.sampled_from(["name", "set", "psn_offset"]), SCALARS, max_size=2))
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_document_is_a_scenario_or_one_line(tmp_path, overrides: dict[str, object]) -> None:
    document = yaml.safe_load(MINIMAL)
    path = tmp_path / "any.yaml"
    try:
        path.write_text(yaml.safe_dump(apply_overrides(document, overrides)), encoding="utf-8")
    except OverrideError:
        return
    try:
        scenario = load_scenario(path)
    except ScenarioError as error:
        assert str(error).startswith(f"{path}: ")
        assert len(str(error).splitlines()) == 1
    else:
        assert all(name for name, _ in resolve_variants(scenario))
