"""Names for what packages add."""

from teal.formats.topology_formats import TopologyFormat as TopologyFormat
from teal.formats.topology_formats import register_topology_format as register_topology_format
from teal.formats.traffic_formats import TrafficFormat as TrafficFormat
from teal.formats.traffic_formats import register_traffic_format as register_traffic_format
from teal.network.rates import ArrayRates as ArrayRates
from teal.nn.flow_gnn_config import FlowGnnConfig as FlowGnnConfig
from teal.nn.flow_models import FlowModel as FlowModel
from teal.objectives import Rules as Rules
from teal.problem.assessment import register_certificate as register_certificate
from teal.problem.condition import Condition as Condition
from teal.problem.condition import Rewritten as Rewritten
from teal.problem.program import Program as Program
from teal.solvers.certified import certified_result as certified_result
from teal.solvers.contract import Engine as Engine
from teal.solvers.contract import Limits as Limits
from teal.solvers.contract import Start as Start
from teal.solvers.engine_choice import register_engine as register_engine
from teal.solvers.pipeline import register_sequence as register_sequence
from teal.solvers.result import Stop as Stop
from teal.spec import Spec as Spec
