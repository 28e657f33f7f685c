"""One measurement of each program, as a process of its own, and what the processes printed."""
import json, subprocess, sys
from collections import namedtuple

Flags = namedtuple("Flags", "threads flash_attention repack load")


def flags_text(f):
    return f"-t {f.threads} -fa {f.flash_attention} --repack {f.repack} -lm {f.load}"


def run(command, wrap):
    done = subprocess.run([*wrap, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}compare: '{' '.join(map(str, command))}' failed")
    return done.stdout


def ours(bench, model, pp, tg, threads, scratch, wrap):
    """{"prefill", "decode": tokens/s, "read": GB/s, ...} of one run of ninfer-bench model."""
    file = scratch / "ours.json"
    run([bench, "model", model, "--pp", pp, "--tg", tg, "--runs", 1, "--json", file,
         *(["--threads", threads] if threads else [])], wrap)
    r = json.load(open(file))
    return dict(prefill=r["prefill_tok_s"]["median"], decode=r["decode_tok_s"]["median"],
                read=r["read_gb_s"]["median"], token_bytes=r["token_bytes"], isa=r["isa"])


def llama_bench(llama, model, pp, tg, flags, repetitions, wrap):
    """The records that llama-bench prints; several values of a flag give all combinations."""
    values = {name: ",".join(str(v) for v in sorted({getattr(f, name) for f in flags})) for name in Flags._fields}
    out = run([llama.bench, "-m", model, "-p", pp, "-n", tg, "-r", repetitions, "-o", "json", "-t", values["threads"],
               "-fa", values["flash_attention"], "--repack", values["repack"], "-lm", values["load"], "-ngl", 0], wrap)
    return json.loads(out)


def record_flags(r):
    fa = r["flash_attn"]
    return Flags(r["n_threads"], int(fa) if not isinstance(fa, str) else {"on": 1, "off": 0}[fa], int(r["repack"]),
                 r["load_mode"])


def theirs(llama, model, pp, tg, best, wrap):
    """{"prefill", "decode"}: each by the flags that are best for it, in one process where they are the same."""
    if best["prefill"] == best["decode"]:
        records = llama_bench(llama, model, pp, tg, [best["prefill"]], 1, wrap)
    else:
        records = llama_bench(llama, model, pp, 0, [best["prefill"]], 1, wrap) + \
            llama_bench(llama, model, 0, tg, [best["decode"]], 1, wrap)
    return {"prefill" if r["n_prompt"] else "decode": r["avg_ts"] for r in records}


def trial(llama, model, threads, wrap):
    """Short runs: every combination of the other flags at the most threads, then fewer threads with what was best.
    (best flags of prefill and decode, table of all)"""
    table = {}

    def short(flags):
        for r in llama_bench(llama, model, 128, 32, flags, 2, wrap):
            table.setdefault(record_flags(r), {})["prefill" if r["n_prompt"] else "decode"] = r["avg_ts"]

    def best():
        return {k: max(table, key=lambda f: table[f][k]) for k in ("prefill", "decode")}

    short([Flags(max(threads), fa, repack, load) for fa in (0, 1) for repack in (0, 1) for load in ("mmap", "none")])
    for first in set(best().values()):
        for n in threads:
            if n != max(threads):
                short([first._replace(threads=n)])
    return best(), [dict(f._asdict(), **rates) for f, rates in table.items()]
