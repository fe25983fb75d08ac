"""Rows and operations of a training, over a time that the test gives."""

import torch

from diffuspec.pairs.factory import throughput
from diffuspec.pairs.factory.loss import Head
from diffuspec.pairs.factory.start import load_target
from diffuspec.pairs.factory.throughput import Throughput


def test_rows_of_training_passes_are_counted_since_the_start(target, monkeypatch):
    model, now = load_target(target).train(), [0.0]
    head = Head(model)
    work = Throughput(model, head, lambda: now[0])
    layers = sum(p.numel() for p in model.get_decoder().layers.parameters() if p.ndim == 2)
    flops = 6 * 30 * layers + 4 * 5 * len(head) * model.config.hidden_size
    monkeypatch.setattr(throughput, "peak_flops", lambda device: flops / 2 / 0.25)

    decoder, ids = model.get_decoder(), torch.ones(3, 10, dtype=torch.long)
    decoder(input_ids=ids)  # before the start
    work.start()
    hidden = decoder(input_ids=ids).last_hidden_state[0, :5]
    head.loss(hidden, torch.ones(5, 1, dtype=torch.long), torch.ones(5, 1))
    model.eval()
    decoder(input_ids=ids)  # a measurement
    now[0] = 2.0
    assert work.describe() == "15 rows/s, 25% of the peak"
