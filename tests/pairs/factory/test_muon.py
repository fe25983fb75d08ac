"""The batched Muon is torch's."""

import torch

from diffuspec.pairs.factory.muon import BatchedMuon, orthogonal

SHAPES = ((8, 4), (8, 4), (4, 8), (6, 6))


def test_batched_steps_are_those_of_torch():
    start = [torch.randn(shape, generator=torch.Generator().manual_seed(3)) for shape in SHAPES]

    def trained(kind):
        matrices = [torch.nn.Parameter(one.clone()) for one in start]
        untouched = torch.nn.Parameter(torch.ones(2, 2))
        optimizer = kind([*matrices, untouched], lr=0.02, weight_decay=0.1)
        for step in range(3):
            random = torch.Generator().manual_seed(step)
            for one in matrices:
                one.grad = torch.randn(one.shape, generator=random)
            optimizer.step()
        return [*matrices, untouched], optimizer.state_dict()

    usual, usual_state = trained(torch.optim.Muon)
    batched, batched_state = trained(BatchedMuon)
    for one, other in zip(usual, batched, strict=True):
        assert torch.allclose(one, other, atol=2e-3)
    assert batched_state["state"].keys() == usual_state["state"].keys()
    assert all(
        torch.allclose(state["momentum_buffer"], usual_state["state"][place]["momentum_buffer"])
        for place, state in batched_state["state"].items()
    )


def test_matrices_of_a_batch_are_made_orthogonal_apart():
    batch = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(1))
    batch[1] *= 1000
    coefficients = (3.4445, -4.775, 2.0315)
    sizes = torch.linalg.svdvals(orthogonal(batch, coefficients, 5, 1e-7).float())
    assert sizes.min() > 0.5 and sizes.max() < 1.3
