#!/usr/bin/env python3
"""NInfer beside llama.cpp on this machine: prefill and decode of one model with the shapes of Qwen3-30B-A3B.

Both programs get the same weights to the bit: ninfer-bench make-model writes a container, and its blocks are stored
again as GGUF (c4 is Q4_0, i8 is Q8_0; dense matrices are i8 and Q8_0 in both). They take turns within seconds; the read
bandwidth is measured between the turns. First the two must agree about the logits of small models of the same shapes.
docs/benchmarks.md says how to read the result.

    python3 bench/compare.py                                   # downloads and builds llama.cpp in build-compare/
    python3 bench/compare.py --llama-dir ~/llama.cpp/build     # a build or a checkout that is there
"""
import argparse, datetime, json, os, platform, shlex, statistics, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["gguf>=0.17,<1", "numpy>=1.26,<3", "xxhash>=3.4,<5", "zstandard>=0.22,<1", "scikit-build-core>=0.10,<2"]
LIKE = "qwen3-30b-a3b"
GGUF_NAME = {"c4": "Q4_0", "i8": "Q8_0", "f32": "F32"}
PREFILL_RATIO = 1.5
DECODE_RATIO, OF_READ = 1.25, {"c4": 0.90, "i8": 0.92}  # one of the two: beside the peer, of the read bandwidth
# logits of the two programs: least correlation of a position, least mean. Both round activations to 8 bits for the
# quantised types, each in its own way, and a router near a tie then takes another expert.
AGREE = {"f32": (0.9999, 0.99999), "i8": (0.98, 0.999), "c4": (0.98, 0.999)}


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, default=Path("build"), help="folder of our commands (default build)")
    p.add_argument("--work", type=Path, default=Path("build-compare"),
                   help="folder for the peer, its Python environment and the models (default build-compare)")
    p.add_argument("--llama-dir", type=Path, help="a llama.cpp checkout, or a build folder that holds bin/llama-bench")
    p.add_argument("--llama-version", default="0.3.36", help="of PyPI llama-cpp-python (default 0.3.36)")
    p.add_argument("--types", default="c4,i8", help="of c4, i8 (default both)")
    p.add_argument("--layers", type=int, default=12, help="(default 12 of 48)")
    p.add_argument("--experts", type=int, default=64, help="of a layer (default 64 of 128)")
    p.add_argument("--vocab", type=int, default=37984,
                   help="rows of embedding and head (default 37984: a quarter of the model's, as 12 layers are)")
    p.add_argument("--pp", type=int, default=512, help="tokens of the prompt (default 512)")
    p.add_argument("--tg", type=int, default=128, help="tokens decoded from an empty context (default 128)")
    p.add_argument("--rounds", type=int, default=9, help="rounds in which both programs take turns (default 9)")
    p.add_argument("--wrap", default="", help="command before the measuring process, such as 'numactl -N 0 -m 0'")
    p.add_argument("--only-check", action="store_true", help="compare logits and measure nothing")
    p.add_argument("--keep", action="store_true", help="leave the models in the work folder")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="of the build (default: all cores)")
    p.add_argument("--add", action="store_true", help="keep the types of the report at --out that are not measured now")
    p.add_argument("--out", default="bench/results/compare-qwen3-30b-shapes",
                   help="report without its ending (default bench/results/compare-qwen3-30b-shapes)")
    a = p.parse_args()
    a.types = a.types.split(",")
    if not set(a.types) <= set(OF_READ):
        p.error("--types: a list of c4, i8")
    if a.rounds < 1:
        p.error("--rounds must be at least 1")
    a.wrap = shlex.split(a.wrap)
    return a


def enter_environment(work):
    """Goes on in the work folder's Python environment, made when it is not there."""
    python = work.absolute() / "venv" / "bin" / "python"
    if Path(sys.prefix) == python.parents[1]:
        return
    stamp = work / "venv" / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PACKAGES):
        print(f"make a Python environment in {work}/venv", file=sys.stderr)
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    os.execv(python, [str(python), *sys.argv])


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- models ----------------------------------------------------------------------------------------------------------

def make_pair(a, kind, layers, experts, vocab):
    """A container and a GGUF of the same weights."""
    from peer import gguf_model
    ours, theirs = a.work / f"model-{kind}.ninfer", a.work / f"model-{kind}.gguf"
    say(f"make {ours} and {theirs}")
    for path in (ours, theirs):
        path.unlink(missing_ok=True)  # of a run that was cut off
    subprocess.run([a.build / "ninfer-bench", "make-model", "--like", LIKE, "--layers", str(layers), "--experts",
                    str(experts), "--vocab", str(vocab), "--type", kind, ours, "--tokenizer-from",
                    a.build / "tiny-moe.ninfer"], check=True)
    gguf_model.write_gguf(ours, theirs)
    return ours, theirs


# ---- agreement -------------------------------------------------------------------------------------------------------

def agreement(x, y):
    """Two programs' logits [tokens, vocabulary]."""
    import numpy as np
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        sys.exit("compare: logits that are not finite")
    each = [float(np.corrcoef(p, q)[0, 1]) for p, q in zip(x, y)]
    return dict(correlation_min=min(each), correlation_mean=statistics.mean(each),
                largest_difference=float(abs(x - y).max() / x.std()),  # in standard deviations of the logits
                same_argmax=float((x.argmax(-1) == y.argmax(-1)).mean()))


def token_ids(n, vocab):
    """The first ids of both programs' measurements."""
    x, ids = 1, []
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((x >> 33) % vocab)
    return ids


def check_logits(a, llama, kinds, tokens=64, vocab=8192):
    """Two layers of the same shapes: the two programs against each other, and each against its own f32."""
    import numpy as np
    from peer.measure import Program
    ids, x, y, result = json.dumps(token_ids(tokens, vocab)), {}, {}, {}
    for kind in ["f32", *kinds]:
        ours, theirs = make_pair(a, kind, 2, 16, vocab)
        npy, raw = a.work / "ours.npy", a.work / "llama.f32"
        subprocess.run([a.build / "ninfer", ours, "--ids", ids, "--dump-logits", npy], check=True)
        program = Program(llama.runs, theirs, a.jobs, 1, 1, "mmap", tokens, 1)
        program.ask(f"logits {raw}")
        program.close()
        x[kind], y[kind] = np.load(npy), np.fromfile(raw, np.float32).reshape(tokens, vocab)
        result[kind] = agreement(x[kind], y[kind])
        for path in (ours, theirs, npy, raw):
            path.unlink()
    for kind in kinds:
        result[f"{kind}, ours against our f32"] = agreement(x[kind], x["f32"])
        result[f"{kind}, llama.cpp against its f32"] = agreement(y[kind], y["f32"])
    for kind in ["f32", *kinds]:
        r, (least, mean) = result[kind], AGREE[kind]
        say(f"logits, {kind}: correlation {r['correlation_mean']:.6f}, same argmax {r['same_argmax']:.3f}")
        if r["correlation_min"] < least or r["correlation_mean"] < mean:
            sys.exit(f"compare: the two programs disagree about the logits of {kind}: {r}")
    return result


# ---- measurement -----------------------------------------------------------------------------------------------------

def summary(values):
    return dict(min=min(values), median=statistics.median(values), max=max(values))


def phase(a, **spec):
    """One part of the measurement, as a process behind --wrap."""
    given, result = a.work / "spec.json", a.work / "result.json"
    given.write_text(json.dumps(spec, default=str))
    script = ROOT / "bench" / "peer" / "measure.py"
    subprocess.run([*a.wrap, sys.executable, script, given, result], check=True)
    return json.loads(result.read_text())


def measure(a, llama, kind):
    from peer.measure import Flags, flags_text
    ours, theirs = make_pair(a, kind, a.layers, a.experts, a.vocab)
    cores, now = len(os.sched_getaffinity(0)), machine()
    say(f"{kind}: flags of llama-bench")
    trial = phase(a, what="trial", llama_bench=llama.bench, theirs=theirs, threads=sorted({max(1, cores // 2), cores}))
    flags = {k: flags_text(Flags(**f)) for k, f in trial["best"].items()}
    for k, text in flags.items():
        say(f"  best for {k}: {text}")
    r = phase(a, what="rounds", bench=a.build / "ninfer-bench", llama_runs=llama.runs, ours=ours, theirs=theirs,
              best=trial["best"], pp=a.pp, tg=a.tg, rounds=a.rounds)
    sizes = dict(ours=ours.stat().st_size, theirs=theirs.stat().st_size)
    for path in (ours, theirs):
        if not a.keep:
            path.unlink()
    return judge(kind, dict(r, flags=flags, trial=trial["table"], bytes=sizes, machine=now, commit=commit()))


def judge(kind, r):
    """Medians of each program, medians of the rounds' ratios, and whether the aims are met. Within a round the programs
    take turns by the second, so its ratio holds also on a machine whose speed changes by the minute."""
    r["read_gb_s"] = summary([x["read"] for x in r["rounds"]])
    for what in ("prefill", "decode"):
        r[what] = {who: summary([x[who][what] for x in r["rounds"]]) for who in ("ours", "theirs")}
        r[what]["ratio"] = summary([x["ours"][what] / x["theirs"][what] for x in r["rounds"]])
        r[what]["ratio_of_medians"] = r[what]["ours"]["median"] / r[what]["theirs"]["median"]
    d = r["decode"]
    d["bound"] = r["read_gb_s"]["median"] * 1e9 / r["token_bytes"]  # tokens/s at the read bandwidth
    d["of_read"] = {who: summary([x[who]["decode"] * r["token_bytes"] / 1e9 / x["read"] for x in r["rounds"]])
                    for who in ("ours", "theirs")}
    ratio, part = d["ratio"]["median"], d["of_read"]["ours"]["median"]
    d["met"] = ratio >= DECODE_RATIO or (ratio >= 1 and part >= OF_READ[kind])
    r["prefill"]["met"] = r["prefill"]["ratio"]["median"] >= PREFILL_RATIO
    return r


# ---- report ----------------------------------------------------------------------------------------------------------

def machine():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return dict(cpu=names[0] if names else platform.machine(), cores=len(os.sched_getaffinity(0)),
                memory_gb=round(memory / 1e6, 1), system=platform.system(),
                load=round(os.getloadavg()[0], 2), date=datetime.date.today().isoformat())


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def own_command(result):
    """What was asked for, without the folders of this machine."""
    return f"python3 bench/compare.py {' '.join(f'--{k} {v}' for k, v in result['settings'].items())}"


def triple(s, digits):
    return f"{s['min']:.{digits}f} / **{s['median']:.{digits}f}** / {s['max']:.{digits}f}"


def type_lines(kind, r, pp, tg):
    lines = ["", f"## {kind} beside {GGUF_NAME[kind]}", "",
             "| tok/s | NInfer | llama.cpp | ratio in a round | ratio of medians | aim | |",
             "|---|---|---|---|---|---|---|"]
    aims = dict(prefill=f"{PREFILL_RATIO}", decode=f"{DECODE_RATIO}, or {OF_READ[kind]:.2f} of the read bandwidth")
    for what, n, digits in (("prefill", pp, 1), ("decode", tg, 2)):
        x = r[what]
        lines.append(f"| {what} of {n} tokens | {triple(x['ours'], digits)} | {triple(x['theirs'], digits)} | "
                     f"{triple(x['ratio'], 2)} | {x['ratio_of_medians']:.2f} | {aims[what]} | "
                     f"{'met' if x['met'] else 'missed'} |")
    x = r["decode"]["of_read"]
    lines += [f"| decode, of the read bandwidth | {triple(x['ours'], 2)} | {triple(x['theirs'], 2)} | | | | |", "",
              f"A decoded token reads {r['token_bytes'] / 1e6:.1f} MB; the read bandwidth, measured between the turns, "
              f"is {triple(r['read_gb_s'], 2)} GB/s, of which the median is {r['decode']['bound']:.1f} "
              f"tok/s. Kernels: {r['isa']}. Files: {r['bytes']['ours'] / 1e6:.0f} and "
              f"{r['bytes']['theirs'] / 1e6:.0f} MB. Flags of llama-bench: prefill `{r['flags']['prefill']}`, decode "
              f"`{r['flags']['decode']}`. Rounds measured again because other processes used the processors: "
              f"{len(r['measured_again'])}; in those that count others had at most "
              f"{max(x['others'] + x['stolen'] for x in r['rounds']):.1%} of them. Commit {r['commit']}, "
              f"{r['machine']['date']}."]
    return lines


def markdown(result):
    from peer.measure import SEGMENT
    m, s = next(iter(result["types"].values()))["machine"], result["settings"]
    lines = ["# NInfer beside llama.cpp: shapes of Qwen3-30B-A3B", "",
             f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}. `{own_command(result)}`; llama.cpp: "
             f"{result['llama']['origin']}, {', '.join(result['llama']['flags'])}.", "",
             f"{s['layers']} layers, {s['experts']} experts of which 8 are chosen, hidden 2048, expert 768, 32 heads, "
             f"4 KV heads of 128, vocabulary {s['vocab']}; random weights, the same to the bit in both files. "
             f"{s['rounds']} rounds: prefill of both programs, then decode in turns of {SEGMENT} tokens, the same tokens for "
             "both; minimum / **median** / maximum. Types may have been measured apart (`--types`, `--add`)."]
    for kind, r in sorted(result["types"].items()):
        lines += type_lines(kind, r, s["pp"], s["tg"])
    lines += ["", "## The same logits", "",
              "Two layers of the same shapes, 16 experts, vocabulary 8192, 64 tokens at once: logits of the two programs "
              "from the same weights, and of each program beside its own f32 logits.", "",
              "| weights | correlation, mean | least of a position | largest difference / deviation | same argmax |",
              "|---|---|---|---|---|"]
    for name, c in result["logits"].items():
        lines.append(f"| {name} | {c['correlation_mean']:.6f} | {c['correlation_min']:.6f} | "
                     f"{c['largest_difference']:.4f} | {c['same_argmax']:.3f} |")
    return "\n".join(lines) + "\n"


def chart(result, path):
    from peer import svg
    of = sorted(result["types"].items())
    panels = [("decode", "tokens/s", [(k, [r["decode"]["ours"], r["decode"]["theirs"]], r["decode"]["bound"])
                                      for k, r in of]),
              ("prefill", "tokens/s", [(k, [r["prefill"]["ours"], r["prefill"]["theirs"]], None) for k, r in of])]
    m = of[0][1]["machine"]
    svg.bars(path, f"Shapes of Qwen3-30B-A3B, {result['settings']['layers']} layers, {m['cpu']}, {m['cores']} cores",
             ["NInfer", "llama.cpp"], panels, "dashed: all weights of a token at the memory's read bandwidth")


def write(result, path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".json", "w") as f:
        json.dump(result, f, indent=1)
    with open(path + ".md", "w") as f:
        f.write(markdown(result))
    chart(result, path + ".svg")


def main():
    a = options()
    enter_environment(a.work)
    sys.path.insert(0, str(ROOT / "bench"))
    from peer.llama_build import Llama
    for name in ("ninfer", "ninfer-bench", "tiny-moe.ninfer"):
        if not (a.build / name).exists():
            sys.exit(f"compare: {a.build / name} is missing: run `make all model` first")
    llama = Llama(a.work.absolute(), a.llama_dir and a.llama_dir.absolute(), a.llama_version, a.jobs)
    logits = check_logits(a, llama, a.types)
    if a.only_check:
        print(json.dumps(logits, indent=1))
        return
    result = dict(settings={k: getattr(a, k) for k in ("layers", "experts", "vocab", "pp", "tg", "rounds")},
                  llama=dict(origin=llama.origin, flags=llama.flags), logits=logits, types={})
    if a.add:
        old = json.loads(Path(a.out + ".json").read_text())
        if (old["settings"], old["llama"]) != (result["settings"], result["llama"]):
            sys.exit(f"compare: --add: {a.out}.json was measured with other settings or another llama.cpp")
        result["types"].update(old["types"])
        result["logits"] = {**old["logits"], **logits}
    for kind in a.types:
        result["types"][kind] = measure(a, llama, kind)
        write(result, a.out)
    print(markdown(result))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:  # the program has said why
        sys.exit(f"compare: '{shlex.join(map(str, e.cmd))}' ended with status {e.returncode}")
