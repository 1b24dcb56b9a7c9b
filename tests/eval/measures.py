# SPDX-License-Identifier: MIT
"""What is measured of one daemon, and of one against another. Everything goes through
libkvclient or kvctl, as any program's requests do."""
import array
import concurrent.futures
import json
import os
import re
import subprocess

import sandbox
import scores

AT_ONCE = 8  # requests in flight: enough for the daemon to batch
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```")


def in_parallel(fn, items):
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(fn, items))


# --- distributions ----------------------------------------------------------------


def read_windows(command, say):
    """Run kld or peer_kv. Return: {name: {"kl", "nll", "same"}}, windows end to end."""
    found = {}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="ascii")
    for line in child.stdout:
        window = json.loads(line)
        name = window["format"]
        into = found.setdefault(name, {"kl": [], "nll": [], "same": []})
        for key, values in into.items():
            values += window[key]
        say(f"window {window['window'] + 1}: {name}")
    if child.wait() != 0:
        raise RuntimeError(f"{os.path.basename(command[0])} failed")
    return found


def write_tokens(path, tokens):
    with open(path, "wb") as f:
        array.array("I", tokens).tofile(f)


def divergences(build, folder, windows, sockets, say):
    """KL of the daemons against the first one; sockets: {name: path}."""
    path = os.path.join(folder, "windows.u32")
    write_tokens(path, [t for w in windows for t in w])
    return read_windows([os.path.join(build, "tests", "eval", "kld"), path,
                         str(len(windows[0]))] +
                        [f"{name}={socket}" for name, socket in sockets.items()], say)


def peers(build, folder, model, windows, say):
    """The same of llama.cpp's formats, emulated."""
    path = os.path.join(folder, "windows.u32")
    write_tokens(path, [t for w in windows for t in w])
    return read_windows([os.path.join(build, "tests", "eval", "peer_kv"), model, path,
                         str(len(windows[0]))], say)


def summary(figures, reference):
    """Of what kld printed: the numbers of one format, with intervals."""
    kl, nll, base = figures["kl"], figures["nll"], reference["nll"]
    same = sum(figures["same"])
    return {
        "positions": len(kl),
        "kl_mean": scores.mean(kl), "kl_mean_ci": scores.mean_interval(kl),
        "kl_p99": scores.quantile(kl, 0.99), "kl_p99_ci": scores.quantile_interval(kl, 0.99),
        "ppl": 2.718281828459045 ** scores.mean(nll),
        "ppl_ratio": 2.718281828459045 ** (scores.mean(nll) - scores.mean(base)),
        "ppl_ratio_ci": [2.718281828459045 ** x for x in scores.mean_interval(
            [a - b for a, b in zip(nll, base)])],
        "top1": same / len(kl), "top1_ci": scores.wilson(same, len(kl)),
    }


# --- generation -------------------------------------------------------------------


def continuations(client, prompts, n_tokens):
    return in_parallel(lambda p: client.generate(p, n_tokens, ignore_eos=True), prompts)


def generation(client, prompts, answers, reference):
    """Greedy answers against those of the reference, free-running and teacher-forced."""
    splits = [scores.divergence(a.tokens, r.tokens) for a, r in zip(answers, reference)]
    n = max(len(r.tokens) for r in reference)
    lengths = [n if s is None else s for s in splits]

    def flips(pair):
        prompt, answer = pair
        first = len(prompt) - 1
        ids = client.likeliest(prompt + answer.tokens[:-1], first)
        return sum(a != b for a, b in zip(ids, answer.tokens)), len(ids)

    counted = in_parallel(flips, list(zip(prompts, reference)))
    changed, total = sum(c for c, _ in counted), sum(t for _, t in counted)
    return {
        "prompts": len(prompts), "tokens": total,
        "divergence_median": scores.median(lengths), "divergence_max": n,
        "identical": sum(s is None for s in splits),
        "flips_per_1000": 1000 * changed / total,
        "flips_per_1000_ci": [1000 * x for x in scores.wilson(changed, total)],
        "bleu": scores.bleu([a.text for a in answers], [r.text for r in reference]),
        "rouge_l": scores.mean([scores.rouge_l(a.text, r.text)
                                for a, r in zip(answers, reference)]),
    }


# --- tasks ------------------------------------------------------------------------


def ask(question):
    subject, text, choices, _answer = question
    lines = [f"{letter}. {choice}" for letter, choice in zip("ABCD", choices)]
    return (f"The following are multiple choice questions (with answers) about {subject}."
            f"\n\n{text}\n" + "\n".join(lines) + "\nAnswer:")


def multiple_choice(client, questions, letters):
    """The likeliest of the four letters, and by how much the right one leads."""
    def choose(question):
        logprobs = client.next_logprobs(client.tokenize(ask(question)), letters)
        right = question[3]
        best_wrong = max(p for i, p in enumerate(logprobs) if i != right)
        return logprobs.index(max(logprobs)), logprobs[right] - best_wrong

    chosen = in_parallel(choose, questions)
    hits = sum(c == q[3] for (c, _), q in zip(chosen, questions))
    return {"questions": len(questions), "accuracy": hits / len(questions),
            "accuracy_ci": scores.wilson(hits, len(questions)),
            "chosen": [c for c, _ in chosen], "margins": [m for _, m in chosen]}


def against(choices, reference):
    """Adds to a format's choices how they differ from the reference's."""
    same = sum(a == b for a, b in zip(choices["chosen"], reference["chosen"]))
    choices["same"] = same / len(choices["chosen"])
    choices["margin_shift"] = scores.mean(
        [abs(a - b) for a, b in zip(choices["margins"], reference["margins"])])
    return choices


def code(client, problems, n_tokens, command):
    """pass@1 with greedy answers, each run in the sandbox."""
    answers = in_parallel(
        lambda p: client.generate(p["prompt"].rstrip("\n") + "\n", n_tokens, stop=STOPS),
        problems)
    programs = [p["prompt"].rstrip("\n") + "\n" + a.text + "\n" + p["test"] +
                f"\ncheck({p['entry_point']})\n" for p, a in zip(problems, answers)]
    passed = [sandbox.passes(command, program) for program in programs]
    return {"problems": len(problems), "pass1": sum(passed) / len(passed),
            "pass1_ci": scores.wilson(sum(passed), len(passed)),
            "tokens": n_tokens}


# --- speed ------------------------------------------------------------------------


def speed(clients, prompts, n_tokens):
    """TTFT and decode rate, the daemons alternately. prompts: one a round, none cached.

    Return: {name: {"ttft_ms", "tokens_per_s"}}, medians."""
    times = {name: ([], []) for name in clients}
    for prompt in prompts:
        for name, client in clients.items():
            answer = client.generate(prompt, n_tokens, ignore_eos=True)
            times[name][0].append(answer.ttft_s * 1e3)
            times[name][1].append((n_tokens - 1) / (answer.total_s - answer.ttft_s))
    return {name: {"ttft_ms": scores.median(ttft), "tokens_per_s": scores.median(rate),
                   "rounds": len(ttft), "prompt_tokens": len(prompts[0])}
            for name, (ttft, rate) in times.items()}


# --- truth of the model's arithmetic -------------------------------------------------


def logprob_error(client, golden):
    """Mean distance from the reference's logprobs of golden.json's long texts."""
    errors = []
    for case in golden["score"]:
        got = client.score(case["tokens"])[1:]
        errors += [abs(a - b) for a, b in zip(got, case["logprobs"])]
    return {"logprob_error": scores.mean(errors), "logprob_worst": max(errors),
            "tokens": len(errors)}


def last_line(log):
    """Why a daemon did not start, as it said itself."""
    lines = [line for line in log.splitlines() if line.strip()]
    return re.sub(r"^kvd: (error: )?", "", lines[-1]) if lines else "it said nothing"
