"""Collects published chat templates from the source packages and wheels of PyPI projects that carry some:

    python tests/differential/fetch_templates.py FOLDER [PACKAGE ...]

Afterwards: NF_TEMPLATES=FOLDER pytest tests/python/test_template.py. The templates belong to their authors and are not kept in the repository.
"""
import hashlib, io, json, os, subprocess, sys, tarfile, tempfile, zipfile

PACKAGES = ["llama-cpp-python:sdist", "vllm:sdist", "sglang:wheel", "mlx-lm:wheel", "fastchat:wheel", "outlines:sdist", "text-generation:wheel", "xgrammar:sdist"]


def members(path):
    if path.endswith(".whl") or path.endswith(".zip"):
        with zipfile.ZipFile(path) as z:
            for n in z.namelist(): yield n, lambda n=n: z.read(n)
    else:
        with tarfile.open(path) as t:
            for m in t:
                if m.isfile(): yield m.name, lambda m=m: t.extractfile(m).read()


def templates(name, data):
    if name.endswith(".jinja") or name.endswith(".jinja2"): yield data.decode("utf-8", "strict")
    elif name.endswith("tokenizer_config.json"):
        t = json.loads(data).get("chat_template")
        for x in ([t] if isinstance(t, str) else [i.get("template") for i in t or []]):
            if x: yield x


def main(folder, packages):
    os.makedirs(folder, exist_ok=True)
    count = 0
    for spec in packages:
        name, _, kind = spec.partition(":")
        with tempfile.TemporaryDirectory() as tmp:
            how = ["--no-binary", ":all:"] if kind == "sdist" else ["--only-binary", ":all:"]
            p = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", *how, "-d", tmp, name], capture_output=True, text=True)
            if p.returncode:
                print(f"{name}: not fetched: {p.stderr.strip().splitlines()[-1] if p.stderr.strip() else 'pip failed'}")
                continue
            found = 0
            for f in os.listdir(tmp):
                for member, read in members(f"{tmp}/{f}"):
                    if not member.endswith((".jinja", ".jinja2", "tokenizer_config.json")): continue
                    try: texts = list(templates(member, read()))
                    except (ValueError, UnicodeDecodeError): continue
                    for t in texts:
                        if "messages" not in t: continue
                        out = f"{folder}/{os.path.basename(member).rsplit('.', 1)[0]}-{hashlib.sha256(t.encode()).hexdigest()[:8]}.jinja"
                        found += not os.path.exists(out)
                        open(out, "w", encoding="utf-8").write(t)
            print(f"{name}: {found} templates")
            count += found
    print(f"{count} templates in {folder}")


if __name__ == "__main__":
    if len(sys.argv) < 2: sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:] or PACKAGES)
