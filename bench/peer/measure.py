"""The measurement of the comparison: the peer's best flags, then both programs in turns. Run as a program of its own,

    measure.py SPEC.json OUT.json

so that one command before it (numactl, ...) covers everything that is timed."""
import json, os, statistics, subprocess, sys, time
from collections import namedtuple

Flags = namedtuple("Flags", "threads flash_attention repack load")
SEGMENT = 16  # tokens that a program decodes before the other one's turn
OTHERS = 0.04  # of the processors: a round in which other processes used more is measured again


def flags_text(f):
    return f"-t {f.threads} -fa {f.flash_attention} --repack {f.repack} -lm {f.load}"


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- the peer's flags ------------------------------------------------------------------------------------------------

def llama_bench(program, model, pp, tg, flags, repetitions):
    """The records that llama-bench prints; several values of a flag give all combinations."""
    values = {name: ",".join(str(v) for v in sorted({getattr(f, name) for f in flags})) for name in Flags._fields}
    command = [program, "-m", model, "-p", pp, "-n", tg, "-r", repetitions, "-o", "json", "-t", values["threads"], "-fa",
               values["flash_attention"], "--repack", values["repack"], "-lm", values["load"], "-ngl", 0]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}compare: llama-bench failed")
    return json.loads(done.stdout)


def record_flags(r):
    fa = r["flash_attn"]
    return Flags(r["n_threads"], int(fa) if not isinstance(fa, str) else {"on": 1, "off": 0}[fa], int(r["repack"]),
                 r["load_mode"])


def trial(program, model, threads):
    """Short runs: every combination of the other flags at the most threads, then fewer threads with what was best.
    (best flags of prefill and decode, table of all)"""
    table = {}

    def short(flags):
        for r in llama_bench(program, model, 128, 32, flags, 2):
            kind = "prefill" if r["n_prompt"] else "decode"
            table.setdefault(record_flags(r), {})[kind] = max(r["samples_ts"])

    def best():
        return {k: max(table, key=lambda f: table[f][k]) for k in ("prefill", "decode")}

    short([Flags(max(threads), fa, repack, load) for fa in (0, 1) for repack in (0, 1) for load in ("mmap", "none")])
    for first in set(best().values()):
        for n in threads:
            if n != max(threads):
                short([first._replace(threads=n)])
    return best(), [dict(f._asdict(), **rates) for f, rates in table.items()]


# ---- two programs in turns -------------------------------------------------------------------------------------------

class Program:
    """A process that answers lines."""

    def __init__(self, *command):
        self.command = " ".join(map(str, command))
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        if not first.startswith("ready"):
            sys.exit(f"compare: '{self.command}' did not start")
        self.about = json.loads(first[5:].strip() or "null")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"compare: '{self.command}' ended at '{line}'")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        if self.process.wait():
            sys.exit(f"compare: '{self.command}' failed")


def busy_s():
    """Seconds of processor time that the machine has used, and that a host took from it."""
    v = [int(x) / os.sysconf("SC_CLK_TCK") for x in open("/proc/stat").readline().split()[1:9]]
    return v[0] + v[1] + v[2] + v[5] + v[6], v[7]


def own_s(programs):
    """Seconds of processor time of these processes."""
    total = sum(os.times()[:2])
    for p in programs:
        fields = open(f"/proc/{p.process.pid}/stat").read().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def one_round(ours, theirs, pp, tg, ours_first):
    """Prefill of both, then decode of both in segments with the read bandwidth between them; tokens/s, GB/s."""
    everyone = {ours, *theirs.values()}
    clock, busy, own = time.monotonic(), busy_s(), own_s(everyone)
    order = ("ours", "theirs") if ours_first else ("theirs", "ours")
    of = dict(ours=dict(prefill=ours, decode=ours), theirs=theirs)
    prefill = {who: pp / of[who]["prefill"].ask("prefill") for who in order}
    for who in order:
        of[who]["decode"].ask("start")
    seconds, reads = dict(ours=0.0, theirs=0.0), []
    for first in range(0, tg, SEGMENT):
        reads.append(ours.ask("read"))
        for who in order if first // SEGMENT % 2 == 0 else order[::-1]:
            seconds[who] += of[who]["decode"].ask(f"decode {min(SEGMENT, tg - first)}")
    clock = (time.monotonic() - clock) * len(os.sched_getaffinity(0))
    now = busy_s()
    r = {who: dict(prefill=prefill[who], decode=tg / seconds[who]) for who in order}
    return dict(r, read=statistics.harmonic_mean(reads), others=(now[0] - busy[0] - own_s(everyone) + own) / clock,
                stolen=(now[1] - busy[1]) / clock)


def rounds(spec, best):
    ours = Program(spec["bench"], "model", spec["ours"], "--pp", spec["pp"], "--tg", spec["tg"], "--turns")
    started = {f: Program(spec["llama_runs"], spec["theirs"], f.threads, f.flash_attention, f.repack, f.load,
                          spec["pp"], spec["tg"]) for f in set(best.values())}
    theirs = {k: started[f] for k, f in best.items()}
    good, again = [], []
    while len(good) < spec["rounds"]:
        r = one_round(ours, theirs, spec["pp"], spec["tg"], len(good) % 2 == 0)
        (good if r["others"] + r["stolen"] <= OTHERS or len(again) >= spec["rounds"] else again).append(r)
        x, y = r["ours"], r["theirs"]
        say(f"round {len(good)}/{spec['rounds']}: prefill {x['prefill']:.1f} : {y['prefill']:.1f}, decode "
            f"{x['decode']:.2f} : {y['decode']:.2f} tok/s, read {r['read']:.2f} GB/s"
            + (f"; again, others used {r['others'] + r['stolen']:.1%}" if r in again else ""))
    for p in (ours, *started.values()):
        p.close()
    return dict(ours.about, rounds=good, measured_again=again)


def main():
    spec = json.load(open(sys.argv[1]))
    if spec["what"] == "trial":
        best, table = trial(spec["llama_bench"], spec["theirs"], spec["threads"])
        result = dict(best={k: f._asdict() for k, f in best.items()}, table=table)
    else:
        result = rounds(spec, {k: Flags(**f) for k, f in spec["best"].items()})
    with open(sys.argv[2], "w") as f:
        json.dump(result, f)


if __name__ == "__main__":
    main()
