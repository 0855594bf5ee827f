"""The schema of a scenario file: sections, fields, defaults and allowed values.

Values are real units of the emulated hardware: rates in bit/s, durations in seconds, sizes in bytes
once parsed. Sections that choose a strategy (topology, routing, workload) hold its name and, beside
it, the parameters that the strategy itself declares.
"""

from testbed.schema.faults import Faults, SlowFault
from testbed.schema.placement import Placement, Server
from testbed.schema.scenario import Scenario

__all__ = ["Faults", "Placement", "Scenario", "Server", "SlowFault"]
