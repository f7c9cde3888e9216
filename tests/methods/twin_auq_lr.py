"""AUQ-LR in plain numpy: one block after the other, every matrix dense, formulas as printed in docs/math.md (S12) and
docs/theory.md. It shares no code with the library.

Unknowns are flattened row by row: x of shape (m, C) is a vector of n = m·C numbers, and A ⊗ S is np.kron(A, S).
"""

from __future__ import annotations

import numpy as np

REFRESH = (2, 4, 7, 11, 16, 24, 32)
FLOOR, FIRST, FAR, SHARE = 1e-5, 0.3, 100.0, 0.25
RIDGE, GROWTH, D, EPSILON = 1e-9, 2.0, 1e3, 1e-6


# ---------------------------------------------------------------------- losses, of one block
class Squares:
    falls = False
    columns = 1

    def __init__(self, X, y, c):
        self.X, self.y, self.c = X, y, c

    def grad(self, u):
        return self.X.T @ (self.c * (self.X @ u - self.y))

    def rows(self, u):
        """The curvature of every row, C × C."""
        return self.c[:, None, None] * np.ones((len(self.y), 1, 1))


class Softmax:
    """Labels 0 … C − 1."""

    falls = True

    def __init__(self, X, y, c, columns):
        self.X, self.y, self.c, self.columns = X, y.astype(int), c, columns

    def chances(self, u):
        Z = self.X @ u.reshape(-1, self.columns)
        E = np.exp(Z - Z.max(1, keepdims=True))
        return E / E.sum(1, keepdims=True)

    def grad(self, u):
        return (self.X.T @ (self.c[:, None] * (self.chances(u) - np.eye(self.columns)[self.y]))).ravel()

    def rows(self, u):
        P = self.chances(u)
        return self.c[:, None, None] * (np.eye(self.columns) * P[:, :, None] - P[:, :, None] * P[:, None, :])


class TwoClasses:
    """Labels ±1."""

    falls = True
    columns = 1

    def __init__(self, X, y, c):
        self.X, self.y, self.c = X, y, c

    def grad(self, u):
        return self.X.T @ (-self.c * self.y / (1 + np.exp(self.y * (self.X @ u))))

    def rows(self, u):
        p = 1 / (1 + np.exp(-(self.X @ u)))
        return (self.c * p * (1 - p))[:, None, None]


def hessian(f, u):
    S = f.rows(u)
    return sum(np.kron(np.outer(x, x), s) for x, s in zip(f.X, S, strict=True))


# ---------------------------------------------------------------------- the two minimisations
def local_minimum(f, W, v, lam, start):
    """argmin f(u) − ⟨λ, u − v⟩ + ½‖u − v‖²_W: Newton's method, steps halved until the gradient is smaller."""
    u = start

    def slope(u):
        return f.grad(u) - lam + W @ (u - v)

    for _ in range(200):
        g = slope(u)
        step = np.linalg.solve(hessian(f, u) + W, g)
        t = 1.0
        while np.linalg.norm(slope(u - t * step)) > np.linalg.norm(g) and t > 1e-6:
            t /= 2
        if t <= 1e-6:  # rounding
            break
        u = u - t * step
        if np.linalg.norm(t * step) <= 1e-16 * np.linalg.norm(u):
            break
    return u


def consensus_minimum(K, s, l1, l2):
    """argmin l1‖v‖₁ + l2/2‖v‖² + ½⟨v, Kv⟩ − ⟨s, v⟩: signs by coordinate descent, then the equations of those signs."""
    A = K + l2 * np.eye(len(s))
    if l1 == 0:
        return np.linalg.solve(A, s)
    v = np.zeros_like(s)
    for _ in range(20_000):
        before = v.copy()
        for i in range(len(s)):
            rest = s[i] - A[i] @ v + A[i, i] * v[i]
            v[i] = np.sign(rest) * max(abs(rest) - l1, 0) / A[i, i]
        if np.linalg.norm(v - before) <= 1e-15 * np.linalg.norm(v):
            break
    on = v != 0
    v[on] = np.linalg.solve(A[np.ix_(on, on)], s[on] - l1 * np.sign(v[on]))
    return v


# ---------------------------------------------------------------------- the method
class Twin:
    """`step()` makes one iteration; v, lam and what happened (`events`) can be read afterwards."""

    def __init__(self, blocks, l1, l2, rank, alpha=1.8, memory=16, skip=0.1):
        self.f, self.l1, self.l2, self.alpha, self.memory, self.skip = blocks, l1, l2, alpha, memory, skip
        self.N, self.C = len(blocks), blocks[0].columns
        self.n = blocks[0].X.shape[1] * self.C
        self.U = [self.directions(f, rank) for f in blocks]
        self.v = np.zeros(self.n)
        self.W = [self.weights(j, first=True) for j in range(self.N)]
        self.z = [np.zeros(self.n) for _ in blocks]  # W_j v − λ_j
        self.u = [np.zeros(self.n) for _ in blocks]
        self.k, self.accelerated, self.first, self.last = 0, 0, None, None
        self.was_accelerated, self.plain, self.before = False, None, None
        self.dR, self.dS = [], []
        self.stale = blocks[0].falls  # squares have the same curvature everywhere
        self.events = []
        self.round()

    # ------------------------------------------------------------------ weights
    def directions(self, f, rank):
        """The leading right singular vectors of the weighted rows, at most a quarter as many as there are rows."""
        _, E = np.linalg.eigh(f.X.T @ (f.c[:, None] * f.X))
        return E[:, ::-1][:, : min(rank, int(np.ceil(SHARE * len(f.X))))]

    def weights(self, j, first=False):
        """W_j = (U M Uᵀ + diag d) ⊗ S + φI at v."""
        f, U = self.f[j], self.U[j]
        m = len(U)
        S_i, squares = f.rows(self.v), (f.X**2).sum(1)
        w = np.trace(S_i, axis1=1, axis2=2)
        A = f.X.T @ (w[:, None] * f.X)
        energy = squares @ w
        S = np.einsum("i,iab->ab", squares, S_i) / energy
        M = U.T @ A @ U
        d = np.maximum(0, np.diag(A - U @ M @ U.T))
        mean = energy / (m * self.C)
        if first and f.falls:
            q = np.clip(mean / (self.l2 / self.N), 1, FAR)
            share = FIRST ** (np.log(q) / np.log(FAR))
            M, d = share * M, share * d
        phi = self.l2 / self.N + FLOOR * mean
        return np.kron(U @ M @ U.T + np.diag(d), S) + phi * np.eye(self.n)

    # ------------------------------------------------------------------ one round: z → Tz, r and what is known of them
    def round(self):
        self.lam = [W @ self.v - z for W, z in zip(self.W, self.z, strict=True)]
        for j, f in enumerate(self.f):
            self.u[j] = local_minimum(f, self.W[j], self.v, self.lam[j], self.u[j])
        self.r = [self.alpha * W @ (u - self.v) for W, u in zip(self.W, self.u, strict=True)]
        self.norm = np.sqrt(self.inner(self.r, self.r))
        if self.before is not None:
            z_old, r_old = self.before
            a = [x - y for x, y in zip(self.r, r_old, strict=True)]
            b = [x - y for x, y in zip(self.z, z_old, strict=True)]
            self.dR.append(a)
            self.dS.append([x + y for x, y in zip(a, b, strict=True)])
            if len(self.dR) > self.memory:
                self.dR.pop(0)
                self.dS.pop(0)

    def inner(self, a, b):
        """Σ_j ⟨a_j, W_j⁻¹b_j⟩."""
        return sum(x @ np.linalg.solve(W, y) for x, W, y in zip(a, self.W, b, strict=True))

    def step(self):
        self.k += 1
        self.next_z()
        K, s = sum(self.W), sum(self.z)
        self.v = consensus_minimum(K, s, self.l1, self.l2)
        if self.k + 1 in REFRESH and self.stale:
            self.renew()
        self.round()
        if self.k + 2 in REFRESH and self.f[0].falls:  # whether weights are stale is found out one round earlier
            new = [self.weights(j) for j in range(self.N)]
            moved = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(new, self.W, strict=True)]
            self.stale = max(moved) >= self.skip
        else:
            self.stale = False

    def renew(self):
        """v and λ stay, z moves with W, and what was learned of the old map does not count."""
        lam = [W @ self.v - z for W, z in zip(self.W, self.z, strict=True)]
        self.W = [self.weights(j) for j in range(self.N)]
        self.z = [W @ self.v - x for W, x in zip(self.W, lam, strict=True)]
        self.dR, self.dS, self.before, self.was_accelerated = [], [], None, False
        self.events.append((self.k, "renewed"))

    def next_z(self):
        """Anderson acceleration in the norm of W⁻¹, or the plain step; an accelerated step that more than doubled the
        residual is taken back."""
        Tz = [z + r for z, r in zip(self.z, self.r, strict=True)]
        if self.was_accelerated and self.norm > GROWTH * self.last:
            self.z, self.dR, self.dS, self.before, self.was_accelerated = self.plain, [], [], None, False
            self.events.append((self.k, "back"))
            return
        self.first = self.norm if self.first is None else self.first
        self.last, self.was_accelerated, self.before, self.plain = self.norm, False, (self.z, self.r), Tz
        self.z = Tz
        if not self.dR:
            return
        q = range(len(self.dR))
        G = np.array([[self.inner(self.dR[i], self.dR[k]) for k in q] for i in q])
        unit = 1 / np.sqrt(np.diag(G))
        against = np.array([self.inner(self.dR[i], self.r) for i in q])
        gamma = unit * np.linalg.solve(unit[:, None] * G * unit + RIDGE * np.eye(len(q)), unit * against)
        d = [-sum(g * column[j] for g, column in zip(gamma, self.dS, strict=True)) for j in range(self.N)]
        if self.inner(d, d) > (D * self.first * (self.accelerated + 1) ** -(1 + EPSILON)) ** 2:
            return
        self.z = [x + y for x, y in zip(Tz, d, strict=True)]
        self.accelerated, self.was_accelerated = self.accelerated + 1, True
        self.events.append((self.k, "accelerated"))
