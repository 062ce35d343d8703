"""The sparsity penalty, a function of the heads' expected densities d_h:

    mean over h of d_h                          the expected number of edges (`log_density` off)
    log(mean over h of d_h)                     the same share of the remaining edges at 50 % and at 0.5 % (`log_density`)
    mean over h of log(d_h + offset * mean d)   the same for each head (`head_offset`)

The last is concave across heads (group sparsity): its gradient in d_h is 1 / (d_h + offset * mean d), up to (1 + offset) /
offset times that of the others for a head that is nearly closed and less for one that is used much. So edges are removed
from many heads entirely instead of from all heads a little. The mean density inside the logarithm is a constant.
"""

from torch import Tensor

from edgewise.training.sparsify.recipe import Recipe

_MINIMUM = 1e-6  # of the mean density, where no edge is left


def penalty_weights(recipe: Recipe, beta: float, density_per_head: Tensor) -> Tensor:
    """Weight of each head's density in the mean over heads that is added to the loss, [layers, heads] -> the same shape:
    beta times the gradient of the recipe's penalty at these densities, times the number of heads."""
    mean = density_per_head.mean().clamp(min=_MINIMUM)
    if recipe.head_offset is not None:
        return beta / (density_per_head + recipe.head_offset * mean)
    return (beta / mean if recipe.log_density else mean.new_tensor(beta)).expand_as(density_per_head)
