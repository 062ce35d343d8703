"""Edgewise: post-train a transformer until almost no attention edges remain, and read what is left.

>>> import edgewise
>>> model, tokenizer = edgewise.load("pocket"), edgewise.load_tokenizer("pocket")
>>> twin = edgewise.gate(model, edgewise.GateConfig("relative", b=3.5))
>>> with edgewise.tap(twin) as seen:
...     twin(**tokenizer("The opposite of \\" large \\" is \\"", return_tensors="pt"))
>>> seen.density
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.attention.edge_gate import gate_config as gate_config
    from edgewise.attention.edge_gate import mode as mode
    from edgewise.attention.gate import GateConfig as GateConfig
    from edgewise.attention.interface import install as install
    from edgewise.attention.tap import Tap as Tap
    from edgewise.attention.tap import tap as tap
    from edgewise.checkpoint import gate as gate
    from edgewise.checkpoint import load as load
    from edgewise.checkpoint import load_tokenizer as load_tokenizer
    from edgewise.checkpoint import save as save
    from edgewise.circuits.config import CircuitConfig as CircuitConfig
    from edgewise.circuits.find import find_circuits as find_circuits
    from edgewise.circuits.result import CircuitResult as CircuitResult
    from edgewise.costs.plan import Plan as Plan
    from edgewise.costs.plan import plan as plan
    from edgewise.drawing import save_figure as save_figure
    from edgewise.errors import EdgewiseError as EdgewiseError
    from edgewise.evaluation import Measured as Measured
    from edgewise.evaluation import evaluate_models as evaluate_models
    from edgewise.figures.attention_maps import AttentionMaps as AttentionMaps
    from edgewise.figures.collect_maps import collect_maps as collect_maps
    from edgewise.figures.curves import draw_curves as draw_curves
    from edgewise.figures.flow import Flows as Flows
    from edgewise.figures.flow import draw_flow as draw_flow
    from edgewise.figures.head_types import head_type as head_type
    from edgewise.figures.map_grid import MapLook as MapLook
    from edgewise.figures.map_grid import draw_maps as draw_maps
    from edgewise.figures.read_flow import collect_flow as collect_flow
    from edgewise.figures.trace_diagram import draw_trace as draw_trace
    from edgewise.figures.wiring import draw_wiring as draw_wiring
    from edgewise.model_info import ModelInfo as ModelInfo
    from edgewise.model_info import info as info
    from edgewise.posttraining.config import SparsifyConfig as SparsifyConfig
    from edgewise.posttraining.loop import SparsifyResult as SparsifyResult
    from edgewise.posttraining.loop import sparsify as sparsify
    from edgewise.tasks.generate import make_task as make_task
    from edgewise.tasks.pairs import Task as Task
    from edgewise.tracing.config import TraceConfig as TraceConfig
    from edgewise.tracing.explain import trace as trace
    from edgewise.tracing.result import Trace as Trace
    from edgewise.transcoder.config import TranscoderConfig as TranscoderConfig
    from edgewise.transcoder.store import load_transcoder as load_transcoder
    from edgewise.transcoder.train import train_transcoder as train_transcoder
    from edgewise.transcoder.transcoder import Transcoder as Transcoder

__version__ = "0.1.0"

# Imported on first use: torch and transformers take seconds, and `edgewise --help` needs neither.
_HOME = {
    "AttentionMaps": "figures.attention_maps",
    "CircuitConfig": "circuits.config",
    "CircuitResult": "circuits.result",
    "EdgewiseError": "errors",
    "Flows": "figures.flow",
    "GateConfig": "attention.gate",
    "MapLook": "figures.map_grid",
    "Measured": "evaluation",
    "ModelInfo": "model_info",
    "Plan": "costs.plan",
    "SparsifyConfig": "posttraining.config",
    "SparsifyResult": "posttraining.loop",
    "Tap": "attention.tap",
    "Task": "tasks.pairs",
    "Trace": "tracing.result",
    "TraceConfig": "tracing.config",
    "Transcoder": "transcoder.transcoder",
    "TranscoderConfig": "transcoder.config",
    "collect_flow": "figures.read_flow",
    "collect_maps": "figures.collect_maps",
    "draw_curves": "figures.curves",
    "draw_flow": "figures.flow",
    "draw_maps": "figures.map_grid",
    "draw_trace": "figures.trace_diagram",
    "draw_wiring": "figures.wiring",
    "evaluate_models": "evaluation",
    "find_circuits": "circuits.find",
    "gate": "checkpoint",
    "gate_config": "attention.edge_gate",
    "head_type": "figures.head_types",
    "info": "model_info",
    "install": "attention.interface",
    "load": "checkpoint",
    "load_tokenizer": "checkpoint",
    "load_transcoder": "transcoder.store",
    "make_task": "tasks.generate",
    "mode": "attention.edge_gate",
    "plan": "costs.plan",
    "save": "checkpoint",
    "save_figure": "drawing",
    "sparsify": "posttraining.loop",
    "tap": "attention.tap",
    "trace": "tracing.explain",
    "train_transcoder": "transcoder.train",
}
__all__ = sorted(_HOME)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"edgewise.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
