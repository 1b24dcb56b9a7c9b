# SPDX-License-Identifier: MIT
"""Tables of an evaluation, its figures beside what they must be, and the plot."""
import scores

# What the project promises: bytes and KL of a format, and KL as a multiple of a peer's.
# (format, figure, limit); a peer's name as figure means the ratio of the KL divergences.
MUSTS = (
    ("int8", "bytes_ratio", 0.532), ("int8", "kl_mean", 0.00045),
    ("int4", "bytes_ratio", 0.300), ("int4", "kl_mean", 0.011),
    ("fp8_e4m3", "bytes_ratio", 0.516), ("fp8_e4m3", "kl_mean", 0.0105),
    ("int8", "q8_0", 1.05), ("int4", "q4_0", 0.11), ("int4", "q4_0+open", 0.30),
)
MODEL_MUSTS = (("kl_mean", 0.0005), ("logprob_error", 0.02))
PEERS = {"q8_0": "q8_0, rotated", "q4_0": "q4_0, rotated",
         "q4_0+open": "q4_0, rotated, own block fp16"}


def must(what, value, limit, ci=None):
    return {"what": what, "value": value, "limit": limit, "ci": ci,
            "pass": None if value is None else value <= limit + 1e-9}


def musts(ev):
    """Every promise with its figure of this run; without one it is neither kept nor broken."""
    out = []
    for name, figure, limit in MUSTS:
        entry = ev.formats.get(name, {})
        if figure not in PEERS:
            out.append(must(f"{name} {figure}", entry.get(figure), limit,
                            entry.get(figure + "_ci")))
            continue
        value = ci = None
        if "kl_mean" in entry and figure in ev.peers:
            value = entry["kl_mean"] / ev.peers[figure]["kl_mean"]
            ci = scores.ratio_interval(ev.figures[name]["kl"], ev.figures[figure]["kl"])
        out.append(must(f"{name} KL / KL of {PEERS[figure]}", value, limit, ci))
    for figure, limit in MODEL_MUSTS:
        out.append(must(f"model {figure}", ev.model.get(figure), limit,
                        ev.model.get(figure + "_ci")))
    return out


def span(ci, fmt):
    return f"[{ci[0]:{fmt}}, {ci[1]:{fmt}}]" if ci else ""


def table(head, rows):
    if not rows:
        return
    rows = [head] + rows
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                        for i, (cell, w) in enumerate(zip(row, widths))).rstrip())


def distributions(ev):
    rows, n = [], 0
    entries = [(name, e) for name, e in ev.formats.items() if "kl_mean" in e]
    entries += [(PEERS[name], e) for name, e in ev.peers.items()]
    for name, e in entries:
        n = e["positions"]
        rows.append([name, f"{e['bytes_per_token']:.0f}" if "bytes_per_token" in e else "",
                     f"{e['bytes_ratio']:.4f}" if "bytes_ratio" in e else "",
                     f"{e['kl_mean']:.5f}", span(e["kl_mean_ci"], ".5f"),
                     f"{e['kl_p99']:.4f}", span(e["kl_p99_ci"], ".4f"),
                     f"{e['ppl']:.3f}", f"{100 * (e['ppl_ratio'] - 1):+.2f} %",
                     f"{100 * e['top1']:.1f} %"])
    table([f"{n} positions", "B/token", "of fp16", "mean KL", "95 %", "p99 KL", "95 %",
           "perplexity", "change", "top-1 same"], rows)


def answers(ev):
    rows = []
    for name, e in ev.formats.items():
        t = e.get("text")
        if t:
            rows.append([name, f"{t['divergence_median']} of {t['divergence_max']}",
                         f"{t['identical']}/{t['prompts']}", f"{t['flips_per_1000']:.1f}",
                         span(t["flips_per_1000_ci"], ".1f"), f"{t['bleu']:.3f}",
                         f"{t['rouge_l']:.3f}"])
    table(["greedy answers", "median tokens to the first difference", "identical",
           "flips per 1,000", "95 %", "BLEU", "ROUGE-L"], rows)


def tasks(ev):
    rows = []
    for name, e in ev.formats.items():
        c, p, s = e.get("choice"), e.get("code"), e.get("speed")
        if not (c or p or s):
            continue
        rows.append([
            name,
            f"{100 * c['accuracy']:.1f} % of {c['questions']}" if c else "",
            span([100 * x for x in c["accuracy_ci"]], ".0f") if c else "",
            f"{100 * c['same']:.1f} %" if c else "", f"{c['margin_shift']:.3f}" if c else "",
            f"{100 * p['pass1']:.1f} % of {p['problems']}" if p else "",
            span([100 * x for x in p["pass1_ci"]], ".0f") if p else "",
            f"{s['ttft_ms']:.0f}" if s else "", f"{s['tokens_per_s']:.0f}" if s else ""])
    table(["tasks", "MMLU dev", "95 %", "same choice", "margin shift", "HumanEval pass@1",
           "95 %", "TTFT ms", "tokens/s"], rows)


def tables(ev, kept):
    distributions(ev)
    answers(ev)
    tasks(ev)
    if ev.model:
        print(f"\nmodel arithmetic: mean logprob error {ev.model['logprob_error']:.5f} over "
              f"{ev.model['tokens']} tokens of golden.json" +
              (f", KL {ev.model['kl_mean']:.6f} {span(ev.model.get('kl_mean_ci'), '.6f')} "
               "against float32" if "kl_mean" in ev.model else ""))
    for what, why in {**ev.unavailable, **ev.skipped}.items():
        print(f"not measured: {what}: {why}")
    print()
    for m in kept:
        verdict = {True: "PASS", False: "FAIL", None: "----"}[m["pass"]]
        value = "not measured" if m["value"] is None else f"{m['value']:.5g}"
        print(f"{verdict}  {m['what']}: {value}, must be <= {m['limit']:g}"
              f"{'  95 % ' + span(m['ci'], '.4g') if m['ci'] else ''}")


def plot(ev, path, say):
    """Quality against bytes, as a small PNG."""
    try:
        import matplotlib  # pylint: disable=import-outside-toplevel
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt  # pylint: disable=import-outside-toplevel
    except ImportError:
        say("no plot: no Python package matplotlib")
        return
    peer_bytes = {"q8_0": 136 / 256, "q4_0": 72 / 256}
    ours = [(n, e["bytes_ratio"], e) for n, e in ev.formats.items()
            if n != "fp16" and "kl_mean" in e]
    theirs = [(n, peer_bytes[n], e) for n, e in ev.peers.items() if n in peer_bytes]
    if not ours:
        say("no plot: no format beside fp16 was measured")
        return
    figure, axes = plt.subplots(figsize=(6.4, 3.8), dpi=110)
    for points, mark, colour, place, label in (
            (ours, "o", "#1f5fa8", (7, 5), "kvd"),
            (theirs, "s", "#b0562a", (-30, 5), "llama.cpp, emulated")):
        xs, ys = [100 * x for _, x, _ in points], [e["kl_mean"] for _, _, e in points]
        error = [[e["kl_mean"] - e["kl_mean_ci"][0] for _, _, e in points],
                 [e["kl_mean_ci"][1] - e["kl_mean"] for _, _, e in points]]
        axes.errorbar(xs, ys, yerr=error, fmt=mark, color=colour, capsize=3, label=label)
        for (name, _, _), x, y in zip(points, xs, ys):
            axes.annotate(name, (x, y), xytext=place, textcoords="offset points",
                          fontsize=8, color=colour)
    axes.set_yscale("log")
    axes.set_xlim(25, 62)
    axes.set_xlabel("bytes of fp16, %")
    axes.set_ylabel("mean KL divergence, nats")
    positions = ours[0][2]["positions"]
    axes.set_title(f"Distance from fp16 KV, {positions:,} positions, 95 % intervals",
                   fontsize=9)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8, loc="upper right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    say(f"plot: {path}")
