#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The evaluation's own arithmetic and its sandbox, against values known from elsewhere."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "system")]
# pylint: disable=wrong-import-position
import data  # noqa: E402
import sandbox  # noqa: E402
import scores  # noqa: E402
import structs  # noqa: E402


class Structs(unittest.TestCase):
    def test_layout_is_that_of_the_abi(self):
        with open(os.path.join(os.path.dirname(HERE), "abi", "abi-1.txt"), encoding="ascii") as f:
            lines = [line.split() for line in f if line.startswith("struct ")]
        right = {words[1]: (int(words[3]), int(words[5])) for words in lines
                 if len(words) == 6 and words[2] == "offset"}
        for name, struct in (("kvc_connect_opts", structs.ConnectOpts),
                             ("kvc_gen_opts", structs.GenOpts), ("kvc_input", structs.Input),
                             ("kvc_result", structs.Result), ("kvc_piece", structs.Piece),
                             ("kvd_cqe_usage", structs.Usage),
                             ("kvc_score_opts", structs.ScoreOpts)):
            fields = [field for field, _ in struct._fields_ if f"{name}.{field}" in right]
            self.assertGreater(len(fields), 2, name)
            for field in fields:
                member = getattr(struct, field)
                self.assertEqual((member.offset, member.size), right[f"{name}.{field}"],
                                 f"{name}.{field}")


class Scores(unittest.TestCase):
    def test_wilson(self):
        # Newcombe 1998, table I: 81 of 263 and 0 of 20.
        for (hits, n), want in (((81, 263), (0.2553, 0.3662)), ((0, 20), (0.0, 0.1611))):
            for a, b in zip(scores.wilson(hits, n), want):
                self.assertAlmostEqual(a, b, places=4)

    def test_quantile(self):
        self.assertEqual(scores.quantile(range(1, 101), 0.99), 99)
        self.assertEqual(scores.median([3, 1, 2]), 2)

    def test_intervals_hold_their_value(self):
        values = [(i * 37 % 101) / 101 for i in range(4096)]
        low, high = scores.mean_interval(values)
        self.assertTrue(low < scores.mean(values) < high)
        low, high = scores.ratio_interval(values, [2 * v for v in values])
        self.assertAlmostEqual(low, 0.5)
        self.assertAlmostEqual(high, 0.5)

    def test_bleu(self):
        # Papineni et al., example 2: the clipped unigram precision is 2 of 7, no bigram.
        self.assertEqual(scores.bleu(["the " * 7], ["the cat is on the mat"]), 0.0)
        text = "it is a guide to action which ensures that it works"
        self.assertAlmostEqual(scores.bleu([text], [text]), 1.0)
        # Four words of eight: all n-grams hit, the brevity penalty is exp(1 - 8 / 4).
        self.assertAlmostEqual(scores.bleu(["a b c d"], ["a b c d e f g h"]), 0.36787944)

    def test_rouge(self):
        # Lin 2004, section 3.1: the longest common subsequences are 3 and 2 of 4 words.
        reference = "police killed the gunman"
        self.assertEqual(scores.rouge_l("police kill the gunman", reference), 0.75)
        self.assertEqual(scores.rouge_l("the gunman kill police", reference), 0.5)

    def test_divergence(self):
        self.assertEqual(scores.divergence([1, 2, 3], [1, 2, 4]), 2)
        self.assertIsNone(scores.divergence([1, 2], [1, 2]))
        self.assertEqual(scores.divergence([1], [1, 2]), 1)


class Questions(unittest.TestCase):
    def test_parse(self):
        sample = {"question": "Two and\ntwo?\n\n(A) 3 (B) 4 (C) a (5) (D) 6",
                  "target": "Let's think. The answer is (B)."}
        self.assertEqual(data.parse("sums", sample),
                         ("sums", "Two and two?", ["3", "4", "a (5)", "6"], 1))
        self.assertIsNone(data.parse("sums", {**sample, "target": "who knows"}))


@unittest.skipUnless(sandbox.prefix(), "no namespace without network here")
class Sandbox(unittest.TestCase):
    def verdict(self, program):
        return sandbox.passes(sandbox.prefix(), program)

    def test_verdicts(self):
        self.assertTrue(self.verdict("assert sum([1, 1]) == 2"))
        self.assertFalse(self.verdict("assert sum([1, 1]) == 3"))

    def test_what_is_out_of_reach(self):
        for program in ("import socket; socket.create_connection(('127.0.0.1', 22), 1)",
                        "open('x', 'w').write('a')", "import os; os.system('true')",
                        "x = ' ' * (2 << 30)"):
            self.assertFalse(self.verdict(program), program)


if __name__ == "__main__":
    unittest.main()
