#!/usr/bin/env python3
"""Speed of the embedded model on this machine: conversion, prefill, decode. Medians over several runs, beside two bounds measured in the same run: the rate
of copying the checkpoint to the output's folder, and the memory read rate. Writes bench/results/embedded.{md,json}.

    python3 bench/embedded.py [--build build] [--runs 9]
"""
import argparse, json, os, platform, shutil, statistics, subprocess, tempfile, time

MODEL = "models/tiny-moe"


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"): return line.split(":")[1].strip()
    return platform.machine()


def summary(values): return dict(min=min(values), median=statistics.median(values), max=max(values))


def convert(build, kind, runs, folder):
    size = sum(os.path.getsize(f"{MODEL}/{f}") for f in os.listdir(MODEL) if f.endswith(".safetensors"))
    rates, copies = [], []
    for _ in range(runs):
        out = f"{folder}/m-{kind}.ninfer"
        if os.path.exists(out): os.remove(out)
        start = time.perf_counter()
        subprocess.run([f"{build}/ninfer-convert", MODEL, out, "--type", kind], check=True, capture_output=True)
        rates.append(size / (time.perf_counter() - start) / 1e6)
        start = time.perf_counter() # the bound: the same bytes copied and synced by one thread
        for f in os.listdir(MODEL):
            if f.endswith(".safetensors"):
                with open(f"{MODEL}/{f}", "rb") as a, open(f"{folder}/copy", "wb") as b:
                    shutil.copyfileobj(a, b, 1 << 20)
                    b.flush()
                    os.fsync(b.fileno())
        copies.append(size / (time.perf_counter() - start) / 1e6)
    return out, summary(rates), summary(copies)


def generate(build, model, prompt, n):
    out = subprocess.run([f"{build}/ninfer", model, "--ids", json.dumps(prompt), "-n", str(n), "--ignore-eos", "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--runs", type=int, default=9)
    a = p.parse_args()
    golden = json.load(open(f"{MODEL}/golden/golden.json"))
    prompt = golden["text"]["ids_first_8192"][:512]
    result = dict(cpu=cpu_name(), cores=len(os.sched_getaffinity(0)), load=os.getloadavg()[0], command="python3 bench/embedded.py", runs=a.runs, types={})
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("c4", "i8", "bf16", "f32"):
            model, rate, copy = convert(a.build, kind, a.runs, folder)
            prefill, decode = [], []
            for _ in range(a.runs):
                g = generate(a.build, model, prompt, 128)
                prefill.append(512 / g["prefill_s"])
                decode.append(127 / g["decode_s"])
            result["types"][kind] = dict(convert_mb_s=rate, copy_mb_s=copy, prefill_512_tok_s=summary(prefill), decode_128_tok_s=summary(decode))
    lines = [f"# The embedded model on {result['cores']} cores", "", f"{result['cpu']}, load {result['load']:.2f} at the start; `{result['command']}`, {a.runs} runs, warm cache: minimum / median / maximum.",
             "Conversion is whole-process time over the checkpoint's bytes (block FP8), syncing included; beside it the same bytes copied and synced by one thread.", "",
             "| type | convert MB/s | copy MB/s | prefill 512 tok/s | decode 128 tok/s |", "|---|---|---|---|---|"]
    for kind, r in result["types"].items():
        lines.append(f"| {kind} | " + " | ".join("{min:.0f} / **{median:.0f}** / {max:.0f}".format(**r[k]) for k in ("convert_mb_s", "copy_mb_s", "prefill_512_tok_s", "decode_128_tok_s")) + " |")
    os.makedirs("bench/results", exist_ok=True)
    open("bench/results/embedded.md", "w").write("\n".join(lines) + "\n")
    json.dump(result, open("bench/results/embedded.json", "w"), indent=1)
    print("\n".join(lines))


if __name__ == "__main__": main()
