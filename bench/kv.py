#!/usr/bin/env python3
"""What the types of the KV cache cost in quality: KL divergence and negative log-likelihood against an f32 cache.

The embedded model is converted twice, to f32 and to c4. Logits over windows of a text with each cache are held against the
logits of the same weights with an f32 cache. Writes bench/results/kv.{md,json}; speed is measured by ninfer-bench attention.

    python3 bench/kv.py [--build build]
"""
import argparse, json, os, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import quality  # noqa: E402

KINDS = ["f32", "bf16", "q8", "fp8"]


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, default=Path("build"), help="folder of the commands (default build)")
    p.add_argument("--model", type=Path, default=ROOT / "models/tiny-moe", help="checkpoint (default models/tiny-moe)")
    p.add_argument("--text", type=Path, default=ROOT / "models/tiny-moe/chats.txt", help="(default its chats.txt)")
    p.add_argument("--windows", default="512,2048", help="tokens of a window (default 512,2048)")
    p.add_argument("--tokens", type=int, default=8192, help="of the text, at most (default 8192)")
    p.add_argument("--out", default="bench/results/kv", help="report without its ending")
    return p.parse_args()


def logits(a, model, ids, kind, folder):
    import numpy as np
    quality.run(a.build / "ninfer", model, "--ids", json.dumps(ids), "--dump-logits", folder / "l.npy", "--kv-dtype", kind)
    return np.load(folder / "l.npy")


def bytes_per_token(a, model, kind):
    plan = quality.run(a.build / "ninfer-run", model, "--dry-run", "--kv-dtype", kind)
    line, = [l for l in plan.splitlines() if l.startswith("KV cache per token")]
    return int(line[len("KV cache per token"):].split()[0])


def measure(a, weights, window, folder):
    model = folder / f"{weights}.ninfer"
    if not model.exists():
        quality.run(a.build / "ninfer-convert", a.model, model, "--type", weights)
    ids = json.loads(quality.run(a.build / "ninfer", model, "-f", a.text, "--tokenize"))[:a.tokens]
    cut = [ids[i:i + window] for i in range(0, len(ids) - window + 1, window)]
    if not cut:
        sys.exit(f"kv: {a.text}: fewer tokens than a window of {window}")
    base, rows = [logits(a, model, w, "f32", folder) for w in cut], []
    for kind in KINDS:
        x = base if kind == "f32" else [logits(a, model, w, kind, folder) for w in cut]
        rows.append(dict(weights=weights, window=window, windows=len(cut), kv=kind, bytes_per_token=bytes_per_token(a, model, kind),
                         **quality.scores(x, base, cut)))
        print(rows[-1], file=sys.stderr)
    return rows


def main():
    a = options()
    with tempfile.TemporaryDirectory() as folder:
        rows = [r for weights in ("f32", "c4") for window in map(int, a.windows.split(",")) for r in measure(a, weights, window, Path(folder))]
    command = "python3 bench/kv.py " + " ".join(sys.argv[1:])
    report = dict(command=command.strip(), model=a.model.name, text=a.text.name, rows=rows)
    lines = ["# The types of the KV cache: what they cost", "",
             f"{a.model.name} over the first {a.tokens} tokens of {a.text.name}, in windows that are each evaluated alone; `{report['command']}`.",
             "KL(f32 cache || type) in nats a token with its standard error, the same weights on both sides; nll in nats a token; same: positions",
             "whose likeliest token is the same. With c4 weights a layer's inputs are rounded to int8, and a small change in k or v flips some of",
             "those roundings: that sets the floor, not the cache.", "",
             "| weights | window | KV | bytes a token | mean KL | 99 % of positions below | nll | change | same |", "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        kl = ["0", "0"] if r["kv"] == "f32" else [f"{r['kl']:.2e} ± {r['kl_error']:.0e}", f"{r['kl_99']:.1e}"]
        lines.append(f"| {r['weights']} | {r['windows']} x {r['window']} | {r['kv']} | {r['bytes_per_token']} | {kl[0]} | {kl[1]} | {r['nll']:.5f} | "
                     f"{r['nll_change']:+.3%} | {r['same']:.4f} |")
    lines += ["", "Time and bandwidth of each: [attention.md](attention.md)."]
    os.makedirs(os.path.dirname(a.out) or ".", exist_ok=True)
    open(a.out + ".md", "w").write("\n".join(lines) + "\n")
    json.dump(report, open(a.out + ".json", "w"), indent=1)
    print("\n".join(lines))


if __name__ == "__main__": main()
