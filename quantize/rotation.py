"""Offline rotation: makes activations easy to quantize at no cost at run time.

Norm gains are folded into the linears that follow; then the residual stream is multiplied by a random orthogonal Q,
which the neighbouring weights absorb, and each head's values by a Hadamard matrix, which the output projection
absorbs. The model computes the same function; outliers of single channels are spread over all of them.
Method: QuaRot (Ashkboos et al., 2024, arXiv:2404.00456), SpinQuant (Liu et al., 2024, arXiv:2405.16406).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

LARGEST_FACTOR = 64
"""Hadamard factors are multiplied as dense matrices of at most this size: cheap, and one matmul each."""


class Rotation:
    """x → x·Q for rows x of `size`, Q = diag(signs) · (F₁ ⊗ F₂ ⊗ …) with small orthogonal factors.

    The power of two in `size` becomes Hadamard factors, what is left one random orthogonal factor. Seeded: the same
    (size, seed) is the same Q.
    """

    def __init__(self, size: int, seed: int, signs: bool = True) -> None:
        rng = np.random.default_rng([seed, size])
        self.size = size
        self.signs = rng.choice(np.array([-1, 1], np.float32), size) if signs else np.ones(size, np.float32)
        self.factors: list[F32] = []
        while size % 2 == 0:
            factor = 2
            while factor < LARGEST_FACTOR and size % (2 * factor) == 0:
                factor *= 2
            self.factors.append(hadamard(factor))
            size //= factor
        if size > 1:
            q, r = np.linalg.qr(rng.standard_normal((size, size)))
            self.factors.append((q * np.sign(np.diag(r))).astype(np.float32))

    def apply(self, x: npt.NDArray[Any]) -> F32:
        """x f32 [..., size] → x·Q."""
        y = np.asarray(x, np.float32) * self.signs
        shape, behind = y.shape, self.size
        y = y.reshape(-1, self.size)
        for factor in self.factors:
            n = len(factor)
            behind //= n
            y = np.matmul(factor.T, y.reshape(-1, n, behind)) if behind > 1 else y.reshape(-1, n) @ factor
        return np.ascontiguousarray(y.reshape(shape), np.float32)

    def apply_rows(self, weight: npt.NDArray[Any]) -> F32:
        """weight f32 [size, K] → Qᵀ·weight: what a linear that writes the residual stream becomes."""
        return np.ascontiguousarray(self.apply(weight.T).T)


def hadamard(n: int) -> F32:
    """The orthonormal Sylvester-Hadamard matrix of a power of two."""
    h: F32 = np.ones((1, 1), np.float32)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    scaled: F32 = (h / np.sqrt(np.float32(n))).astype(np.float32)
    return scaled
