"""Circuits of edges at tokens (token-level circuits): a component is an edge, and the role of the tokens at which its target
reads along it. Importance that is summed over tokens cancels where one needs an edge and another is harmed by it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from edgewise.circuits.edge_objective import EdgeObjective
from edgewise.circuits.find_minimal import explained_on_splits
from edgewise.circuits.head_objective import shuffle
from edgewise.circuits.joint_search import JointSearch, Report
from edgewise.circuits.minimal import MinimalCircuit
from edgewise.circuits.replay import Replay
from edgewise.circuits.streams import clean_stream
from edgewise.circuits.wiring import Wiring
from edgewise.tasks.pairs import Split
from edgewise.tasks.roles import Roles


class EdgeTokenObjective(EdgeObjective):
    """Edges at tokens, numbered role by role, and within a role as edges are.

    roles: Of the tokens of each split's prompts, all with the same names.
    """

    def __init__(
        self, replays: dict[Split, Replay], wiring: Wiring, max_memory: int, roles: Mapping[Split, Roles]
    ) -> None:
        self.roles = {split: roles[split].numbers[:, of.first :] for split, of in replays.items()}
        self.role_names = roles["fit"].names
        super().__init__(replays, wiring, max_memory)
        count = len(self.role_names)
        self.total = wiring.count * count
        self.candidates = self._differing_at_roles()[:, wiring.exists.nonzero()[:, 0]].flatten()
        self._layer = self._layer.repeat(count)

    def names(self, components: Sequence[int]) -> list[str]:
        edges = self.wiring.edge_names([i % self.wiring.count for i in components])
        roles = [self.role_names[i // self.wiring.count] for i in components]
        return [f"{edge} at {role}" for edge, role in zip(edges, roles, strict=True)]

    def everywhere(self, edges: Tensor) -> Tensor:  # bool [edges] -> bool [m]
        """A circuit of edges at all tokens at which their source writes something that differs."""
        return edges.repeat(len(self.role_names)) & self.candidates

    def _grid(self, masks: Tensor) -> Tensor:  # [copies, m] -> [copies, roles, sources, targets]
        return (
            super()
            ._grid(masks.unflatten(1, (len(self.role_names), -1)).flatten(0, 1))
            .unflatten(0, (len(masks), -1))
        )

    def _roles_of(self, split: Split, prompts: Tensor) -> Tensor:
        return self.roles[split][prompts]

    def shuffled(self, seed: int) -> "EdgeTokenObjective":
        replays: dict[Split, Replay] = {"fit": shuffle(self.replays["fit"], seed)}
        roles: dict[Split, Roles] = {"fit": Roles(self.role_names, self.roles["fit"])}
        shuffled = EdgeTokenObjective(replays, self.wiring, self.max_memory, roles)
        shuffled.effects = {"fit": self.effects["fit"]}
        return shuffled

    def _differing_at_roles(self) -> Tensor:  # -> bool [roles, sources]
        """Whether a source writes something else in the clean run than in the corrupt one, at tokens of a role."""
        differs = torch.zeros(len(self.role_names), len(self.wiring.sources), dtype=torch.bool)
        for split, patching in self.patching.items():
            for prompts, runs in patching.runs():
                change = (clean_stream(runs.replay).written != runs.corrupt.written).any(3)  # [n, sources, t]
                roles = self.roles[split][prompts]
                for role in roles.unique().tolist():
                    at_role = change & (roles == role)[:, None].to(change.device)
                    differs[role] |= at_role.flatten(2).any(2).any(0).cpu()
        return differs


def find_edge_tokens(
    objective: EdgeTokenObjective, edges: Tensor, threshold: float, report: Report
) -> MinimalCircuit | None:
    """The edges of a circuit, bool [edges], at as few tokens as explain enough; None if not even all do. Its size is not
    chosen by other prompts: their wordings have tokens of their own."""
    search = JointSearch(objective, threshold, report=report, at_once=0.1)
    if not search.start(objective.everywhere(edges)):
        return None
    search.eliminate()
    search.polish()
    return MinimalCircuit(
        components=objective.names(search.members()),
        explained=explained_on_splits(objective, search.best),
        path=search.path,
        is_minimal=True,
        levels={**search.levels},
        dropped=objective.names(search.dropped[::-1]),
    )
