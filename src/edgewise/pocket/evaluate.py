"""How well a model knows the pocket world, measured on held-out prompts and text.

Works for any causal language model with Hugging Face's interface and the pocket vocabulary, such as a twin.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from edgewise.pocket import addition
from edgewise.pocket.stream import ID, held_out_text
from edgewise.pocket.world import END, Kind, Prompt, held_out_prompts, relation_prompt

QUESTIONS: tuple[Kind, ...] = ("copy", "ioi", "greater-than", "docstring", "relations")


def encode(prompts: Iterable[Prompt]) -> tuple[Tensor, Tensor]:  # -> int64 [n, longest], [n]
    """Prompts as ids, filled up on the right (a causal model does not see that), and their last positions."""
    rows = [[ID[word] for word in prompt.words] for prompt in prompts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [ID[END]] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([len(row) - 1 for row in rows])


@torch.no_grad()
def logits(
    model: nn.Module, ids: Tensor, batch: int = 128
) -> Tensor:  # int64 [n, t] -> float [n, t, vocabulary]
    """The model's logits at all positions, on the CPU."""
    device = next(model.parameters()).device
    return torch.cat([model(input_ids=part.to(device)).logits.float().cpu() for part in ids.split(batch)])


def score(model: nn.Module, prompts: list[Prompt]) -> Tensor:  # -> float [n], between -1 and 1
    """One number per prompt.

    copy: the share of right words in the second period, from its second word on (that the first period is
    over cannot be known before). greater-than: the probability of later years minus that of all other words.
    Others: 1 if the likeliest word of the whole vocabulary is an answer, else 0.
    """
    parts = [prompts[i : i + 128] for i in range(0, len(prompts), 128)]  # all logits at once would be large
    return torch.cat([_score(model, part) for part in parts])


def _score(model: nn.Module, prompts: list[Prompt]) -> Tensor:  # -> float [n]
    ids, last = encode(prompts)
    out = logits(model, ids)
    values = []
    for row, position, prompt_logits, prompt in zip(ids, last.tolist(), out, prompts, strict=True):
        answers = [ID[answer] for answer in prompt.answers]
        if prompt.kind == "greater-than":
            values.append(2 * prompt_logits[position].softmax(0)[answers].sum() - 1)
        elif prompt.kind == "copy":
            period = len(prompt.combination)
            expected = torch.cat([row[period + 1 : 2 * period - 1], torch.tensor(answers)])
            values.append((prompt_logits[period : 2 * period - 1].argmax(1) == expected).float().mean())
        else:
            values.append(torch.tensor(float(int(prompt_logits[position].argmax()) in answers)))
    return torch.stack(values)


@torch.no_grad()
def held_out_loss(model: nn.Module, n_rows: int = 512, seed: int = 0) -> float:
    """Mean cross-entropy on held-out text, in nats per token."""
    ids = held_out_text(n_rows, seed)
    device = next(model.parameters()).device
    losses = [
        nn.functional.cross_entropy(
            model(input_ids=part.to(device)).logits[:, :-1].flatten(0, 1).float(),
            part[:, 1:].flatten().to(device),
            reduction="sum",
        ).item()
        for part in ids.split(64)
    ]
    return sum(losses) / ids[:, 1:].numel()


def measure(model: nn.Module, n: int = 1000, seed: int = 0) -> dict[str, float]:
    """Mean scores on `n` held-out prompts of each kind, the probability of large -> small, held-out loss."""
    training = model.training
    model.eval()
    results = {kind: score(model, held_out_prompts(kind, n, seed)).mean().item() for kind in QUESTIONS}
    ids, last = encode([relation_prompt("opposite", "large")])
    results["large -> small"] = logits(model, ids)[0, last[0]].softmax(0)[ID["small"]].item()
    results["loss"] = held_out_loss(model, max(n // 2, 64), seed)
    model.train(training)
    return results


@torch.no_grad()
def measure_addition(model: nn.Module) -> dict[str, float]:
    """The share of the 10,000 sums of which all five digits are right, and the loss per digit."""
    tokens, digits = addition.every_sum()
    out = logits(model, tokens, batch=2000)[:, addition.ANSWER]
    right = (out.argmax(-1) == digits).all(1).float().mean().item()
    loss = nn.functional.cross_entropy(out.flatten(0, 1), digits.flatten()).item()
    return {"sums": right, "loss": loss}
