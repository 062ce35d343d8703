"""Post-training under a constraint: remove edges, keep the loss."""
