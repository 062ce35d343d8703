"""summary.json: the metrics of a finished run."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor

from edgewise.measure.loss import Measured
from edgewise.models.registry import embedded
from edgewise.models.twin_format import GATE_KEY
from edgewise.training.sparsify.verdict import judge

if TYPE_CHECKING:
    from edgewise.training.sparsify.run import SparsifyRun


def summarize(
    run: "SparsifyRun", name: str, dense: Measured, twin: Measured, weights: dict[str, Tensor], stopped: str
) -> dict[str, Any]:
    """All metrics of a finished run. Losses and KL are held-out, gates deterministic."""
    config, gate, against_dense = run.config, run.twin.gate, twin.against_dense
    assert against_dense is not None
    verdict = judge(against_dense, config.loss_tolerance, run.recipe.kl_constraint)
    return {
        "model": name,
        "recipe": run.recipe.name,
        "gate": asdict(gate),
        "seed": config.seed,
        "tolerance": config.loss_tolerance,
        "constraint": "loss-and-kl" if run.recipe.kl_constraint else "loss",
        "kept": verdict.kept,
        "warnings": list(verdict.warnings),
        "stopped": stopped,
        "dense_ce": dense.ce,
        "sparse_ce": twin.ce,
        "delta_ce": against_dense.delta_ce,
        "delta_ce_error": against_dense.delta_ce_error,
        "kl": against_dense.kl,
        "held_out_tokens": twin.tokens,
        "density": twin.density,
        "edges_per_query": twin.edges_per_query,
        "heads_closed": twin.heads_closed,
        "heads": twin.density_per_head.numel(),
        "tokens": run.state.tokens,
        "steps": run.state.step,
        "seconds": round(run.state.seconds, 3),
        "tasks": tasks(name, run),
        "density_per_head": twin.density_per_head.tolist(),
        "edges_per_query_per_head": twin.edges_per_query_per_head.tolist(),
        "b_per_head": [b.float().tolist() for key, b in weights.items() if key.endswith(f"{GATE_KEY}b")],
        "settings": {
            "data": run.data.train.name,
            "context": run.data.train.context,
            "batch_size": run.batches.batch_size,
            "learning_rate": run.learning_rates[0],
            "lora": config.lora,
            "attention_only": config.attention_only,
            "start_from": config.start_from,
            "close_heads": config.close_heads,
            "dtype": config.dtype,
            "processes": run.accelerator.num_processes,
        },
        "hyperparameters": asdict(run.recipe),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def tasks(name: str, run: "SparsifyRun") -> dict[str, dict[str, float]]:
    """Scores of an embedded model on the tasks it was made for, before and after; empty for others."""
    model = embedded(name)
    if model is None or model.skills is None:
        return {}
    return {"dense": model.skills(run.dense), "sparse": model.skills(run.twin.model)}
