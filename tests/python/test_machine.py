"""`ninfer-bench machine`: figures in order, the calibration it leaves behind, its messages."""
import json, os

from support import MODEL, run

QUICK = ("--mib", 16, "--latency-mib", 1, "--disk-mib", 16, "--runs", 3)


def spreads(value):
    """Every {"min", "median", "max"} in a JSON value."""
    if isinstance(value, dict):
        if "median" in value:
            yield value
        for v in value.values():
            yield from spreads(v)
    elif isinstance(value, list):
        for v in value:
            yield from spreads(v)


def test_machine(tmp_path):
    saved, report = tmp_path / "made/cal.json", tmp_path / "report.json"
    out, err = run("ninfer-bench", "machine", *QUICK, "--save", saved, "--json", report, "--file", tmp_path)
    assert out.startswith("# The machine\n") and "cores" in out and "| disk read |" in out
    assert f"calibration saved to {saved}" in err
    c = json.loads(saved.read_text())
    assert c == json.loads(report.read_text())["calibration"]
    assert c["format"] == "ninfer-calibration" and c["version"] == 1 and "gpu" not in c
    all_spreads = list(spreads(c))
    assert len(all_spreads) >= 9 and all(0 < s["min"] <= s["median"] <= s["max"] for s in all_spreads)
    threads = [r["threads"] for r in c["memory"]["read_gb_s"]]
    assert threads[0] == 1 and threads == sorted(set(threads))
    assert c["memory"]["latency"]["bytes"] == 1 << 20 and c["disk"]["path"] == str(tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("ninfer-bench-")] == []


def test_default_place_and_no_save(tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    run("ninfer-bench", "machine", *QUICK, "--threads", 1, "--no-save", env=env)
    assert not os.path.exists(tmp_path / "ninfer")
    run("ninfer-bench", "machine", *QUICK, "--threads", 1, env=env)
    c = json.loads((tmp_path / "ninfer/calibration.json").read_text())
    assert "disk" not in c and [r["threads"] for r in c["memory"]["read_gb_s"]] == [1]


def test_messages(tmp_path):
    small = tmp_path / "small"
    small.write_bytes(b"x")
    for args, message in [
        (("--file", tmp_path / "absent"), "absent: cannot open"),
        (("--file", small), "16 MiB at least"),
        (("--threads", 1024), "cores are allowed"),
        (("--no-save", "--save", "/proc/nowhere"), "exclude each other"),
        (("--save", "/proc/nowhere/x"), "/proc/nowhere"),
    ]:
        _, err = run("ninfer-bench", "machine", *QUICK, *args, status=2 if "exclude" in message else 1)
        assert message in err


def test_pinning(tmp_path):
    """Pinned or not, the same answer; /stats says which, and why."""
    run("ninfer-convert", MODEL, tmp_path / "m.ninfer")

    def chat(env, *args):
        out, err = run("ninfer-run", tmp_path / "m.ninfer", "--threads", 1, *args, input="Who are you?\n/stats\n", env=env)
        return out, [l for l in err.splitlines() if l.startswith("threads ")]

    plain, asked = chat({"NINFER_PIN": ""})[0], chat({"NINFER_PIN": "1"})
    assert asked == (plain, ["threads  1, pinned: asked for"])
    assert chat({"NINFER_PIN": "0"}) == (plain, ["threads  1, not pinned: not asked for"])
    assert chat({"NINFER_PIN": "1"}, "--no-pin") == (plain, ["threads  1, not pinned: not asked for"])
    _, err = run("ninfer-run", tmp_path / "m.ninfer", "--prompt", "x", env={"NINFER_PIN": "yes"}, status=1)
    assert "NINFER_PIN must be 0 or 1, not 'yes'" in err


def test_weights(tmp_path):
    """In the file or in memory, the same answer; unknown places are refused, and a dry run copies nothing."""
    run("ninfer-convert", MODEL, tmp_path / "m.ninfer")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    answers = {w: run("ninfer", tmp_path / "m.ninfer", "-p", "Debian is", "-n", 20, "--weights", w, env=env)[0] for w in ("map", "ram", "auto")}
    assert len(set(answers.values())) == 1
    _, err = run("ninfer", tmp_path / "m.ninfer", "-p", "x", "--weights", "disk", status=1)
    assert "'map', 'ram' or 'auto', not 'disk'" in err
    out, err = run("ninfer-run", tmp_path / "m.ninfer", "--dry-run", "--weights", "ram")
    assert "copied to memory" in out and "load" not in err
    _, err = run("ninfer-run", tmp_path / "m.ninfer", "--weights", "ram", input="/stats\n", env=env)
    assert "MB copied to memory" in err
    _, err = run("ninfer-run", tmp_path / "m.ninfer", "--weights", "auto", input="/stats\n", env=env)
    assert "mapped from the file: " in err or "MB copied to memory" in err  # several nodes: copied
