"""The embedded model against the golden values of its reference implementation (models/tiny-moe/README.md), and the promise that threads,
prefill chunks and parts never change a byte."""
import json, struct
import numpy as np
import pytest

from support import BUILD, MODEL, run

FLAGS = open("/proc/cpuinfo").read()
LEVELS = ["portable"] + ["avx2"] * (" avx2" in FLAGS) + ["avx512"] * (" avx512_vnni" in FLAGS)
GOLDEN = json.load(open(f"{MODEL}/golden/golden.json"))


def load_safetensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        a, z = t["data_offsets"]
        out[name] = np.frombuffer(raw[8 + n + a:8 + n + z], {"F32": "<f4", "I32": "<i4"}[t["dtype"]]).reshape(t["shape"])
    return out


TENSORS = load_safetensors(f"{MODEL}/golden/golden.safetensors")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Containers of every type, made once."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def get(name):
        if name not in made:
            path = folder / f"{name}.ninfer"
            flags = {"parts": ["--type", "c4", "--max-file-gb", "0.004"], "nl": ["--type", "c4", "--codebook", "nl"]}.get(name, ["--type", name])
            run("ninfer-convert", MODEL, path, *flags)
            made[name] = path
        return made[name]
    return get


def dump(model, ids, tmp_path, *flags, env=None):
    out = tmp_path / "logits.npy"
    run("ninfer", model, "--ids", json.dumps(ids), "--dump-logits", out, *flags, env=env)
    return np.load(out)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", GOLDEN["prompts"])
def test_logits(models, kind, name, tmp_path):
    prompt = GOLDEN["prompts"][name]
    logits = dump(models(kind), prompt["ids"], tmp_path)
    assert logits.shape == (len(prompt["ids"]), 8192)
    worst = np.abs(logits[prompt["positions"]] - TENSORS[f"{name}.logits"]).max()
    assert worst <= 2e-3, worst


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", GOLDEN["prompts"])
def test_greedy_continuations(models, kind, name):
    prompt = GOLDEN["prompts"][name]
    out = json.loads(run("ninfer", models(kind), "--ids", json.dumps(prompt["ids"]), "-n", 64, "--ignore-eos", "--json")[0])
    close = [i for i, gap in enumerate(prompt["greedy_gaps"]) if gap < 1e-3]
    n = close[0] if close else 64
    assert n >= 32 and out["ids"][:n] == prompt["greedy"][:n]
    assert out["prompt_tokens"] == len(prompt["ids"])


@pytest.mark.parametrize("name", GOLDEN["prompts"])
def test_prompt_text_gives_the_golden_ids(models, name, tmp_path):
    (tmp_path / "p").write_text(GOLDEN["prompts"][name]["text"])
    assert json.loads(run("ninfer", models("c4"), "-f", tmp_path / "p", "--tokenize")[0]) == GOLDEN["prompts"][name]["ids"]


@pytest.mark.parametrize("kind,text,tolerance", [("f32", "chats", 0.0002), ("f32", "text", 0.0002), ("bf16", "chats", 0.0002), ("bf16", "text", 0.0002),
                                                 ("i8", "chats", 0.005), ("c4", "chats", 0.06), ("nl", "chats", 0.06)])
def test_perplexity(models, kind, text, tolerance, tmp_path):
    out = json.loads(run("ninfer-perplexity", models(kind), f"{MODEL}/{text}.txt", "--max-windows", 16, "--json", "--token-nll", tmp_path / "nll.npy")[0])
    want = {"chats": 1.478137, "text": 5.627879}[text]
    assert out["tokens"] == 16 * 511
    print(kind, text, out["nll"], f"{out['nll'] / want - 1:+.4%}")
    assert abs(out["nll"] / want - 1) <= tolerance, out
    nll = np.load(tmp_path / "nll.npy")
    assert nll.shape == (16, 511) and abs(nll.mean() - out["nll"]) < 1e-5 and abs(out["ppl"] - np.exp(out["nll"])) < 1e-6
    if kind == "f32": assert np.abs(nll - TENSORS[f"{text}.nll_windows_512"]).max() < 2e-3


@pytest.mark.parametrize("kind", ["c4", "i8", "bf16", "nl"])
def test_threads_chunks_and_levels_do_not_change_a_byte(models, kind, tmp_path):
    ids = GOLDEN["prompts"]["long"]["ids"][:600]
    base = dump(models(kind), ids, tmp_path, "--threads", 1)
    for threads in (2, 7): assert dump(models(kind), ids, tmp_path, "--threads", threads).tobytes() == base.tobytes()
    for chunk in (1, 17, 512): assert dump(models(kind), ids, tmp_path, "--prefill-chunk", chunk).tobytes() == base.tobytes()
    short = ids[:40] # the portable kernels are slow
    for level in ("portable", "avx2", "avx512"):
        if level in LEVELS: assert dump(models(kind), short, tmp_path, env={"NINFER_CPU": level}).tobytes() == base[:40].tobytes()


def test_parts_do_not_change_a_byte(models, tmp_path):
    import glob
    assert len(glob.glob(f"{models('parts')}*")) >= 5
    ids = GOLDEN["prompts"]["code"]["ids"]
    assert dump(models("parts"), ids, tmp_path).tobytes() == dump(models("c4"), ids, tmp_path).tobytes()


def test_decoded_and_prefilled_tokens_are_the_same(models, tmp_path):
    """An answer's tokens given as a prompt lead to the same next token and the same logits as when they were decoded one by one."""
    prompt = GOLDEN["prompts"]["chat"]["ids"]
    out = json.loads(run("ninfer", models("c4"), "--ids", json.dumps(prompt), "-n", 48, "--ignore-eos", "--json")[0])["ids"]
    whole = dump(models("c4"), prompt + out, tmp_path)
    assert whole[len(prompt) - 1:-1].argmax(1).tolist() == out
    assert dump(models("c4"), prompt + out, tmp_path, "--prefill-chunk", 1).tobytes() == whole.tobytes()


def test_seeded_sampling_is_repeatable(models):
    ids = json.dumps(GOLDEN["prompts"]["chat"]["ids"])
    flags = ["--ids", ids, "-n", 40, "--temperature", 1.0, "--top-p", 0.95, "--ignore-eos", "--json"]
    answers = [json.loads(run("ninfer", models("c4"), *flags, "--seed", seed, "--threads", t, "--prefill-chunk", c)[0])["ids"]
               for seed, t, c in [(1, 1, 512), (1, 7, 3), (2, 2, 512)]]
    assert answers[0] == answers[1] != answers[2]
