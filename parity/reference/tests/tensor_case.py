"""A test case that compares tensors."""
import unittest

import torch


class TensorCase(unittest.TestCase):
    def assert_close(self, found, expected):
        """As `torch.testing.assert_close`, which takes seconds to import what it needs."""
        self.assertEqual((found.shape, found.dtype), (expected.shape, expected.dtype))
        self.assertTrue(torch.allclose(found, expected, rtol=1e-5, atol=1e-6), f"{found}\ninstead of\n{expected}")
