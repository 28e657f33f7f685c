#!/usr/bin/env python3
"""What the types cost in quality, beside llama.cpp's of the same size: KL divergence and negative log-likelihood.

The f32 weights of one model (the embedded one, or a qwen3_5_moe checkpoint given by --model) are rounded to every type by
both programs, experts in the type, other matrices in i8 or Q8_0 unless the type is larger. Each program's logits over
windows of a text are held against its own f32 logits, so what is measured is the type with its input rounding, not the
program; the two programs' f32 logits must agree first. docs/benchmarks.md says how to read the result.

    python3 bench/quality.py                                   # downloads and builds llama.cpp in build-compare/
    python3 bench/quality.py --llama-dir build-compare/llama-build
"""
import argparse, json, os, struct, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402

# bits a weight of an expert: of the block's bytes
OURS = [("c4", 4.5, []), ("c4 nl", 4.5, ["--codebook", "nl"]), ("z4", 4.75, []), ("a4", 5.0, []), ("s5", 5.5, []),
        ("s6", 6.5, []), ("i8", 8.5, [])]
THEIRS = ["Q4_0", "IQ4_NL", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
AGREE = 1e-4  # largest KL of the two programs' f32 logits; a router near a tie may still choose differently


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, default=Path("build"), help="folder of our commands (default build)")
    p.add_argument("--work", type=Path, default=Path("build-compare"), help="folder of the peer (default build-compare)")
    p.add_argument("--llama-dir", type=Path, help="a llama.cpp checkout, or a build folder")
    p.add_argument("--llama-version", default="0.3.36", help="of PyPI llama-cpp-python (default 0.3.36)")
    p.add_argument("--model", type=Path, default=ROOT / "models/tiny-moe", help="checkpoint (default models/tiny-moe)")
    p.add_argument("--text", type=Path, default=ROOT / "models/tiny-moe/chats.txt", help="(default its chats.txt)")
    p.add_argument("--calibration", type=Path, default=ROOT / "models/tiny-moe/text.txt",
                   help="text for the importance statistics (default models/tiny-moe/text.txt)")
    p.add_argument("--window", type=int, default=512, help="tokens of a window (default 512)")
    p.add_argument("--windows", type=int, default=16, help="at most (default 16)")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: all cores)")
    p.add_argument("--out", default="bench/results/quality", help="report without its ending")
    return p.parse_args()


def run(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr}quality: '{' '.join(map(str, command[:6]))} ...' failed")
    return done.stdout


def windows(a, model):
    ids = json.loads(run(a.build / "ninfer", model, "-f", a.text, "--tokenize"))
    cut = [ids[i:i + a.window] for i in range(0, len(ids) - a.window + 1, a.window)][:a.windows]
    if not cut:
        sys.exit(f"quality: {a.text}: {len(ids)} tokens, fewer than a window of {a.window}")
    return cut


def our_logits(a, model, cut):
    import numpy as np
    out, npy = [], a.work / "quality.npy"
    for ids in cut:
        run(a.build / "ninfer", model, "--ids", json.dumps(ids), "--dump-logits", npy, "--threads", a.jobs)
        out.append(np.load(npy))
    npy.unlink()
    return np.stack(out)


def their_logits(a, llama, model, cut):
    import numpy as np
    from peer.measure import Program
    out, raw, prompt = [], a.work / "quality.f32", a.work / "quality.ids"
    program = Program(llama.runs, model, a.jobs, 1, 1, "mmap", a.window, 1)
    for ids in cut:
        np.array(ids, np.int32).tofile(prompt)
        program.ask(f"prompt {prompt}")
        program.ask(f"logits {raw}")
        out.append(np.fromfile(raw, np.float32).reshape(len(ids), -1))
    program.close()
    raw.unlink()
    prompt.unlink()
    return np.stack(out)


def log_softmax(x):
    import numpy as np
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def scores(x, base, cut):
    """KL(f32 || type) in nats a token, NLL beside f32's, positions with the same first choice."""
    import numpy as np
    kl, nll, nll_base, same = [], [], [], []
    for logits, reference, ids in zip(x, base, cut):  # a window at a time: f64 is large
        p, q, at = log_softmax(reference), log_softmax(logits), np.arange(len(ids) - 1)
        kl.append((np.exp(p) * (p - q)).sum(-1))
        nll.append(-q[at, ids[1:]])
        nll_base.append(-p[at, ids[1:]])
        same.append(p.argmax(-1) == q.argmax(-1))
    kl, nll, nll_base = np.concatenate(kl), np.concatenate(nll), np.concatenate(nll_base)
    if not np.isfinite(kl).all():
        sys.exit("quality: a divergence is not finite")
    # the mean's standard error, positions taken as independent
    return dict(kl=float(kl.mean()), kl_error=float(kl.std() / len(kl) ** 0.5), kl_99=float(np.quantile(kl, 0.99)),
                nll=float(nll.mean()), nll_change=float(nll.mean() / nll_base.mean() - 1), same=float(np.concatenate(same).mean()))


def read_importance(path):
    """{name: mean squares [experts, columns]} of a file of ninfer-perplexity --record-imatrix (docs/quantisation.md); an
    expert that was seen little leans on all experts' mean, as in our converter."""
    import numpy as np
    data, out = path.read_bytes(), {}
    n, = struct.unpack_from("<I", data, 12)
    at = 16
    for _ in range(n):
        name = data[at:at + 96].rstrip(b"\0").decode()
        experts, cols = struct.unpack_from("<II", data, at + 96)
        at += 104
        counts = np.frombuffer(data, "<u8", experts, at).astype(np.float64)
        at += 8 * experts
        sums = np.frombuffer(data, "<f4", experts * cols, at).reshape(experts, cols).astype(np.float64)
        at += 4 * experts * cols
        mean = sums.sum(0) / max(counts.sum(), 1)
        out[name] = ((sums + 64 * mean) / (counts[:, None] + 64)).astype(np.float32)
    return out


def measure(a, llama):
    import numpy as np
    from peer import gguf_qwen35
    ggml = gguf_qwen35.Ggml(llama.bench.parent.resolve())
    kinds = gguf_qwen35.QUANT
    f32, model, peer, statistics = (a.work / f"quality{end}" for end in ("-f32.ninfer", ".ninfer", ".gguf", ".imatrix"))
    for path in (f32, model, peer, statistics):  # of a run that was cut short
        path.unlink(missing_ok=True)
    run(a.build / "ninfer-convert", a.model, f32, "--type", "f32")
    run(a.build / "ninfer-perplexity", f32, a.calibration, "--window", 512, "--record-imatrix", statistics)
    cut = windows(a, f32)
    ours = our_logits(a, f32, cut)
    gguf_qwen35.write_gguf(f32, peer, ggml, kinds.F32, kinds.F32)
    theirs = their_logits(a, llama, peer, cut)
    least = min(float(np.corrcoef(p, q)[0, 1]) for x, y in zip(ours, theirs) for p, q in zip(x, y))
    between = scores(theirs, ours, cut)
    compare.say(f"f32 logits of the two programs: KL {between['kl']:.2e}, least correlation of a position {least:.6f}")
    if between["kl"] > AGREE:
        sys.exit("quality: the two programs disagree about the f32 model")
    rows = []

    def add(program, name, bits, imatrix, x, base):
        rows.append(dict(program=program, type=name, bits=bits, imatrix=imatrix, **scores(x, base, cut)))
        compare.say(f"{program} {name}{' imatrix' if imatrix else ''}: KL {rows[-1]['kl']:.5f}, "
                    f"NLL {100 * rows[-1]['nll_change']:+.2f}%")

    importance = read_importance(statistics)
    for name, bits, flags in OURS:
        for use in (False, True) if bits < 8 else (False,):
            run(a.build / "ninfer-convert", a.model, model, "--type", name.split()[0], *flags,
                *(["--imatrix", statistics] if use else []))
            add("NInfer", name, bits, use, our_logits(a, model, cut), ours)
            model.unlink()
    for name in THEIRS:
        kind = getattr(kinds, name)
        block, size = gguf_qwen35.gguf.GGML_QUANT_SIZES[kind]
        for use in (False, True) if kind != kinds.Q8_0 else (False,):
            gguf_qwen35.write_gguf(f32, peer, ggml, kind, kinds.Q8_0, importance if use else None)
            add("llama.cpp", name, 8 * size / block, use, their_logits(a, llama, peer, cut), theirs)
    for path in (f32, peer, statistics):
        path.unlink()
    return dict(tokens=len(cut) * a.window, f32=dict(least_correlation=least, kl=between["kl"],
                nll=scores(ours, ours, cut)["nll"], nll_llama=scores(theirs, theirs, cut)["nll"]), types=rows)


def markdown(r):
    lines = [f"# What the types cost, beside llama.cpp's", "",
             f"`{r['command']}`, commit {r['commit']}; llama.cpp: {r['llama']}.", "",
             f"{r['model']}, {r['tokens']} tokens of {r['text']} in windows of {r['window']}. Experts in the type, other matrices "
             "in i8 or Q8_0; inputs rounded to 8 bits by both programs, each in its own way. KL(f32 || type) in nats a token with "
             "the standard error of its mean, its 99th percentile; NLL beside f32's; positions with the same first choice. Each "
             f"program is held against its own f32 logits; those of the two differ by a KL of {r['f32']['kl']:.1e} (least "
             f"correlation of a position {r['f32']['least_correlation']:.6f}; NLL {r['f32']['nll']:.4f} and "
             f"{r['f32']['nll_llama']:.4f}). With imatrix both use the same statistics of {r['calibration']}. llama.cpp's "
             "K-quants need rows of 256 columns, which the experts of this model do not have.", "",
             "| bits | type | | KL | 99% | NLL | same choice |", "|---|---|---|---|---|---|---|"]
    for t in sorted(r["types"], key=lambda t: (t["bits"], t["program"], t["type"], t["imatrix"])):
        lines.append(f"| {t['bits']:g} | {t['program']} {t['type']} | {'imatrix' if t['imatrix'] else ''} | {t['kl']:.5f} ± "
                     f"{t['kl_error']:.5f} | {t['kl_99']:.4f} | {100 * t['nll_change']:+.2f}% | {100 * t['same']:.1f}% |")
    return "\n".join(lines) + "\n"


def main():
    a = options()
    compare.enter_environment(a.work)
    from peer.llama_build import Llama
    llama = Llama(a.work.absolute(), a.llama_dir and a.llama_dir.absolute(), a.llama_version, a.jobs)
    result = dict(command=f"python3 bench/quality.py --window {a.window} --windows {a.windows}", commit=compare.commit(), llama=llama.origin, model=a.model.name,
                  text=a.text.name, calibration=a.calibration.name, window=a.window, **measure(a, llama))
    with open(a.out + ".json", "w") as f:
        json.dump(result, f, indent=1)
    with open(a.out + ".md", "w") as f:
        f.write(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
