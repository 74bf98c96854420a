"""Which outputs of modules are taps."""
import unittest

import torch
from onboard_dump.taps import Taps


class Weights(torch.nn.Module):
    """One number for each token, as a router of one expert gives them."""

    def forward(self, x):
        return x.sum(-1).flatten()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.weights = torch.nn.Linear(3, 4), Weights()

    def forward(self, x):
        return self.rows(x), self.weights(x)


class Runner:
    model = Model()

    def forward(self, tokens, _start, _cache):
        return self.model(torch.randn(1, len(tokens), 3))

    def fresh(self):
        return None


class Probe(unittest.TestCase):
    def test_a_tap_has_a_row_for_each_token(self):
        taps = Taps(Runner(), None)
        taps.probe(Runner(), list(range(9)))
        self.assertEqual(taps.axes, {"rows": (1, 0)})


if __name__ == "__main__":
    unittest.main()
