# SPDX-License-Identifier: MIT
"""Figures and their uncertainty: intervals are 95 % throughout."""
import collections
import math
import random

ROUNDS = 1000
BLOCK = 64  # neighbouring positions are alike, so they are drawn together


def mean(values):
    return sum(values) / len(values)


def quantile(values, q):
    """The smallest value that at least a share q of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def median(values):
    return quantile(values, 0.5)


def wilson(hits, n):
    """Interval of a share. Source: Wilson 1927."""
    if not n:
        return (0.0, 1.0)
    z, p = 1.96, hits / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (max(0.0, middle - reach), min(1.0, middle + reach))


def block_sums(values):
    return [(sum(values[i:i + BLOCK]), len(values[i:i + BLOCK]))
            for i in range(0, len(values), BLOCK)]


def bootstrap(statistic, n_blocks, rounds=ROUNDS):
    """Interval of statistic(indices of blocks drawn), by percentiles. Seeded."""
    rng = random.Random(1)
    drawn = sorted(statistic([rng.randrange(n_blocks) for _ in range(n_blocks)])
                   for _ in range(rounds))
    return (drawn[int(0.025 * rounds)], drawn[int(0.975 * rounds)])


def mean_interval(values):
    blocks = block_sums(values)
    return bootstrap(lambda picks: sum(blocks[i][0] for i in picks)
                     / sum(blocks[i][1] for i in picks), len(blocks))


def ratio_interval(above, below):
    """Interval of mean(above) / mean(below), the same positions drawn for both."""
    a, b = block_sums(above), block_sums(below)
    return bootstrap(lambda picks: sum(a[i][0] for i in picks)
                     / max(1e-300, sum(b[i][0] for i in picks)), len(a))


def quantile_interval(values, q):
    blocks = [values[i:i + BLOCK] for i in range(0, len(values), BLOCK)]
    return bootstrap(lambda picks: quantile([v for i in picks for v in blocks[i]], q),
                     len(blocks), rounds=100)


def ngrams(words, n):
    return collections.Counter(tuple(words[i:i + n]) for i in range(len(words) - n + 1))


def bleu(candidates, references):
    """Corpus BLEU-4 over words, one reference each. Source: Papineni et al. 2002."""
    hits, total, len_c, len_r = [0] * 4, [0] * 4, 0, 0
    for candidate, reference in zip(candidates, references):
        c, r = candidate.split(), reference.split()
        len_c, len_r = len_c + len(c), len_r + len(r)
        for n in range(1, 5):
            have, want = ngrams(c, n), ngrams(r, n)
            hits[n - 1] += sum(min(k, want[g]) for g, k in have.items())
            total[n - 1] += sum(have.values())
    if not all(hits):
        return 0.0
    brevity = min(0.0, 1 - len_r / len_c)
    return math.exp(brevity + mean([math.log(h / t) for h, t in zip(hits, total)]))


def rouge_l(candidate, reference):
    """F1 of the longest common subsequence of words. Source: Lin 2004."""
    c, r = candidate.split(), reference.split()
    if not c or not r:
        return float(c == r)
    row = [0] * (len(r) + 1)
    for word in c:
        left = 0
        for j, other in enumerate(r, 1):
            row[j], left = (left + 1 if word == other else max(row[j], row[j - 1])), row[j]
    return 2 * row[-1] / (len(c) + len(r))


def divergence(tokens, reference):
    """Tokens until the first difference, or None where there is none."""
    for i, (a, b) in enumerate(zip(tokens, reference)):
        if a != b:
            return i
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))
