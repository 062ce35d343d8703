"""Edgewise: post-train a transformer until almost no attention edges remain, and read what is left.

>>> import edgewise
>>> pair = edgewise.compare("pocket", "pocket-sparse")
>>> pair.circuit("copy").plot()
>>> pair.maps("copy").plot()
>>> pair.report("runs/pocket")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgewise.core.threads import use_free_cores, wait_passively
from edgewise.models.auto_hook import register_with_transformers

if TYPE_CHECKING:
    from edgewise.circuits.config import CircuitConfig as CircuitConfig
    from edgewise.circuits.find import find_circuits as find_circuits
    from edgewise.circuits.result import CircuitResult as CircuitResult
    from edgewise.comparison.comparison import Comparison as Comparison
    from edgewise.comparison.comparison import compare as compare
    from edgewise.core.console import Display as Display
    from edgewise.core.errors import EdgewiseError as EdgewiseError
    from edgewise.flow.collect import collect_flow as collect_flow
    from edgewise.flow.config import FlowConfig as FlowConfig
    from edgewise.flow.result import Flows as Flows
    from edgewise.gating.activations import Activations as Activations
    from edgewise.gating.config import GateConfig as GateConfig
    from edgewise.gating.edge_gate import gate_config as gate_config
    from edgewise.gating.edge_gate import mode as mode
    from edgewise.gating.install import install as install
    from edgewise.gating.tap import tap as tap
    from edgewise.maps.collect import collect_maps as collect_maps
    from edgewise.maps.config import MapsConfig as MapsConfig
    from edgewise.maps.head_types import head_type as head_type
    from edgewise.maps.result import AttentionMaps as AttentionMaps
    from edgewise.measure.benchmarks import Benchmarks as Benchmarks
    from edgewise.measure.benchmarks import evaluate_tasks as evaluate_tasks
    from edgewise.measure.evaluate import evaluate_models as evaluate_models
    from edgewise.measure.evaluation import Evaluation as Evaluation
    from edgewise.measure.loss import Measured as Measured
    from edgewise.models.auto import SparseTwin as SparseTwin
    from edgewise.models.compact import compact as compact
    from edgewise.models.gate import gate as gate
    from edgewise.models.info import ModelInfo as ModelInfo
    from edgewise.models.info import info as info
    from edgewise.models.load import load as load
    from edgewise.models.load import load_tokenizer as load_tokenizer
    from edgewise.models.loaded import LoadedModels as LoadedModels
    from edgewise.models.loaded import load_models as load_models
    from edgewise.models.save import save as save
    from edgewise.planning.plan import Plan as Plan
    from edgewise.planning.plan import plan as plan
    from edgewise.plots.attention_maps import draw_maps as draw_maps
    from edgewise.plots.circuit import draw_circuit as draw_circuit
    from edgewise.plots.curves import draw_curves as draw_curves
    from edgewise.plots.flow import draw_flow as draw_flow
    from edgewise.plots.map_style import MapStyle as MapStyle
    from edgewise.plots.style import save_figure as save_figure
    from edgewise.plots.trace_diagram import draw_trace as draw_trace
    from edgewise.plots.trace_effects import draw_effects as draw_effects
    from edgewise.plots.wiring import draw_wiring as draw_wiring
    from edgewise.reporting.page import report as report
    from edgewise.tasks.generate import make_task as make_task
    from edgewise.tasks.pairs import Task as Task
    from edgewise.tracing.config import InterventionConfig as InterventionConfig
    from edgewise.tracing.config import TraceConfig as TraceConfig
    from edgewise.tracing.intervene import Intervened as Intervened
    from edgewise.tracing.intervene import intervene as intervene
    from edgewise.tracing.result import Trace as Trace
    from edgewise.tracing.trace import trace as trace
    from edgewise.tracing.traces import Traces as Traces
    from edgewise.training.sparsify.config import SparsifyConfig as SparsifyConfig
    from edgewise.training.sparsify.recipe import Recipe as Recipe
    from edgewise.training.sparsify.result import SparsifyResult as SparsifyResult
    from edgewise.training.sparsify.train import sparsify as sparsify
    from edgewise.training.transcoder.config import FeaturesConfig as FeaturesConfig
    from edgewise.training.transcoder.config import TranscoderConfig as TranscoderConfig
    from edgewise.training.transcoder.describe import describe_features as describe_features
    from edgewise.training.transcoder.store import load_transcoder as load_transcoder
    from edgewise.training.transcoder.train import train_transcoder as train_transcoder
    from edgewise.training.transcoder.transcoder import Transcoder as Transcoder

__version__ = "0.1.0"
wait_passively()  # before torch is imported
use_free_cores()  # measures from here on
register_with_transformers()

# Imported on first use: torch and transformers take seconds, and `edgewise --help` needs neither.
_HOME = {
    "Activations": "gating.activations",
    "AttentionMaps": "maps.result",
    "Benchmarks": "measure.benchmarks",
    "CircuitConfig": "circuits.config",
    "CircuitResult": "circuits.result",
    "Comparison": "comparison.comparison",
    "Display": "core.console",
    "EdgewiseError": "core.errors",
    "Evaluation": "measure.evaluation",
    "FeaturesConfig": "training.transcoder.config",
    "FlowConfig": "flow.config",
    "Flows": "flow.result",
    "GateConfig": "gating.config",
    "Intervened": "tracing.intervene",
    "InterventionConfig": "tracing.config",
    "LoadedModels": "models.loaded",
    "MapStyle": "plots.map_style",
    "MapsConfig": "maps.config",
    "Measured": "measure.loss",
    "ModelInfo": "models.info",
    "Plan": "planning.plan",
    "Recipe": "training.sparsify.recipe",
    "SparseTwin": "models.auto",
    "SparsifyConfig": "training.sparsify.config",
    "SparsifyResult": "training.sparsify.result",
    "Task": "tasks.pairs",
    "Trace": "tracing.result",
    "TraceConfig": "tracing.config",
    "Traces": "tracing.traces",
    "Transcoder": "training.transcoder.transcoder",
    "TranscoderConfig": "training.transcoder.config",
    "collect_flow": "flow.collect",
    "collect_maps": "maps.collect",
    "compact": "models.compact",
    "compare": "comparison.comparison",
    "describe_features": "training.transcoder.describe",
    "draw_circuit": "plots.circuit",
    "draw_curves": "plots.curves",
    "draw_flow": "plots.flow",
    "draw_maps": "plots.attention_maps",
    "draw_trace": "plots.trace_diagram",
    "draw_wiring": "plots.wiring",
    "evaluate_models": "measure.evaluate",
    "evaluate_tasks": "measure.benchmarks",
    "find_circuits": "circuits.find",
    "gate": "models.gate",
    "gate_config": "gating.edge_gate",
    "head_type": "maps.head_types",
    "draw_effects": "plots.trace_effects",
    "info": "models.info",
    "intervene": "tracing.intervene",
    "install": "gating.install",
    "load": "models.load",
    "load_models": "models.loaded",
    "load_tokenizer": "models.load",
    "load_transcoder": "training.transcoder.store",
    "make_task": "tasks.generate",
    "mode": "gating.edge_gate",
    "plan": "planning.plan",
    "save": "models.save",
    "save_figure": "plots.style",
    "sparsify": "training.sparsify.train",
    "tap": "gating.tap",
    "trace": "tracing.trace",
    "train_transcoder": "training.transcoder.train",
    "report": "reporting.page",
}
__all__ = sorted(_HOME)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"edgewise.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
