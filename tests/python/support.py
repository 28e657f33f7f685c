"""What the Python tests share: where things are, and how to run the programs."""
import os, subprocess

BUILD = os.environ.get("NF_BUILD", "build")
MODEL = "models/tiny-moe"


def run(*args, input=None, status=0, env=None, timeout=300):
    """Runs a program of the build folder; checks its exit status; returns (stdout, stderr) as text."""
    p = subprocess.run([f"{BUILD}/{args[0]}", *map(str, args[1:])], input=input, capture_output=True, text=True, timeout=timeout,
                       env={**os.environ, **(env or {})})
    assert p.returncode == status, (p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p.stdout, p.stderr
