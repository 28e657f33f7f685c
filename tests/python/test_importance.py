"""Importance statistics: recording (ninfer-perplexity --record-imatrix) and use (ninfer-convert --imatrix)."""
import json, struct
import numpy as np
import pytest

import make_checkpoint as mk
from ninfer_reader import Container
from support import MODEL, run

TEXT = "The quick brown fox jumps over the lazy dog, twice; then it rests. " * 4
WINDOW = ("--window", 64)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A small model in f32, a text and its statistics."""
    path = tmp_path_factory.mktemp("importance")
    mk.write(path / "src", mk.config(), seed=3)
    (path / "text").write_text(TEXT)
    run("ninfer-convert", path / "src", path / "f32.ninfer", "--type", "f32")
    run("ninfer-perplexity", path / "f32.ninfer", path / "text", *WINDOW, "--record-imatrix", path / "im")
    return path


def parse(raw):
    """name -> (counts [experts], sums [experts, cols]); the checksum is left to the program."""
    assert raw[:8] == b"NFIMPORT"
    version, n = struct.unpack_from("<II", raw, 8)
    assert version == 1
    at, out = 16, {}
    for _ in range(n):
        name = raw[at:at + 96].rstrip(b"\0").decode()
        experts, cols = struct.unpack_from("<II", raw, at + 96)
        at += 104
        counts = np.frombuffer(raw, "<u8", experts, at)
        at += 8 * experts
        out[name] = counts, np.frombuffer(raw, "<f4", experts * cols, at).reshape(experts, cols)
        at += 4 * experts * cols
    assert at == len(raw) - 8
    return out


def test_recording_changes_nothing_and_does_not_depend_on_threads(work, tmp_path):
    plain = run("ninfer-perplexity", work / "f32.ninfer", work / "text", *WINDOW, "--token-nll", tmp_path / "a.npy", "--json")[0]
    for flags in (["--threads", 1], ["--threads", 3, "--prefill-chunk", 7]):
        out = run("ninfer-perplexity", work / "f32.ninfer", work / "text", *WINDOW, "--token-nll", tmp_path / "b.npy", "--json", "--record-imatrix", tmp_path / "im", *flags)[0]
        assert out == plain
        assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
        assert (tmp_path / "im").read_bytes() == (work / "im").read_bytes()


def test_what_is_recorded(work):
    got, c = parse((work / "im").read_bytes()), mk.config()
    n = json.loads(run("ninfer-perplexity", work / "f32.ninfer", work / "text", *WINDOW, "--json")[0])["tokens"]
    assert got["lm_head"][0] == n and got["embed_tokens"][0] == 0  # rows of an embedding are looked up, not multiplied
    assert "layers.0.mlp.gate" not in got  # stored exactly
    for l, kind in enumerate(c["layer_types"]):
        bank = f"layers.{l}.mlp.experts"
        counts, sums = got[bank + ".gate_up_proj"]
        down_counts, down = got[bank + ".down_proj"]
        assert sums.shape == (c["num_experts"], c["hidden_size"]) and down.shape == (c["num_experts"], c["moe_intermediate_size"])
        assert counts.sum() == n * c["num_experts_per_tok"] and (counts == down_counts).all()
        assert ((sums.sum(1) > 0) == (counts > 0)).all() and ((down.sum(1) > 0) == (counts > 0)).all()
        # Each token passes its row to top-k experts and to the shared one: the sums agree.
        shared = got[f"layers.{l}.mlp.shared_expert.gate_proj"]
        assert shared[0] == n
        assert np.allclose(sums.sum(0), shared[1][0] * c["num_experts_per_tok"], rtol=1e-5)
        assert (got[f"layers.{l}.mlp.shared_expert.up_proj"][1] == shared[1]).all()
    q, k, v = (got[f"layers.1.self_attn.{p}_proj"] for p in "qkv")
    assert (q[1] == k[1]).all() and (k[1] == v[1]).all() and q[0] == n


@pytest.mark.parametrize("kind", [["c4"], ["c4", "--codebook", "nl"], ["z4"], ["a4"], ["s5"], ["s6"]])
def test_weighted_error_falls(kind, work, tmp_path):
    """Over the whole model, the error weighted by the recorded squares is smaller with them than without."""
    run("ninfer-convert", work / "src", tmp_path / "plain.ninfer", "--type", *kind)
    run("ninfer-convert", work / "src", tmp_path / "weighted.ninfer", "--type", *kind, "--imatrix", work / "im")
    stats, exact = parse((work / "im").read_bytes()), Container(str(work / "f32.ninfer"))

    def error(path):
        c, total = Container(str(path)), 0.0
        for l in range(3):
            bank = f"layers.{l}.mlp.experts"
            for e in range(7):
                for m in range(3):
                    counts, sums = stats[bank + (".down_proj" if m == 2 else ".gate_up_proj")]
                    total += ((c.expert(bank, e, m) - exact.expert(bank, e, m)) ** 2 * sums[e]).sum()
        return total
    plain, weighted = error(tmp_path / "plain.ninfer"), error(tmp_path / "weighted.ninfer")
    assert weighted < plain


def test_equal_statistics_change_nothing(work, tmp_path):
    """Columns that all weigh alike give the bytes of a conversion without statistics."""
    stats = parse((work / "im").read_bytes())
    write(tmp_path / "im", {k: (np.full_like(c, 1000), np.full_like(s, 8.0)) for k, (c, s) in stats.items()}, tmp_path)
    run("ninfer-convert", work / "src", tmp_path / "a.ninfer", "--threads", 1)
    run("ninfer-convert", work / "src", tmp_path / "b.ninfer", "--imatrix", tmp_path / "im", "--threads", 1)
    a, b = Container(str(tmp_path / "a.ninfer")), Container(str(tmp_path / "b.ninfer"))
    for e in range(7):
        for m in range(3): assert (a.expert("layers.0.mlp.experts", e, m) == b.expert("layers.0.mlp.experts", e, m)).all()


def test_an_unused_expert_gets_the_mean_of_the_layer(work, tmp_path):
    """Expert 0 without tokens is quantised as with the mean of the others, not as if all columns were alike."""
    stats = parse((work / "im").read_bytes())
    rng = np.random.default_rng(5)
    skewed = {}
    for k, (c, s) in stats.items():
        s = np.repeat((rng.random((1, s.shape[1])) ** 4).astype("<f4"), len(s), 0)
        counts, sums = np.full_like(c, 1000), s * 1000
        skewed[k] = counts, sums.astype("<f4")
    write(tmp_path / "all", skewed, tmp_path)
    write(tmp_path / "without", {k: (np.where((np.arange(len(c)) == 0) & (len(c) > 1), 0, c).astype("<u8"),
                                     np.where((np.arange(len(c)) == 0)[:, None] & (len(c) > 1), 0, s).astype("<f4")) for k, (c, s) in skewed.items()}, tmp_path)
    got = {}
    for name in ("all", "without"):
        run("ninfer-convert", work / "src", tmp_path / f"{name}.ninfer", "--imatrix", tmp_path / name)
        got[name] = Container(str(tmp_path / f"{name}.ninfer")).expert("layers.0.mlp.experts", 0, 0)
    run("ninfer-convert", work / "src", tmp_path / "plain.ninfer")
    plain = Container(str(tmp_path / "plain.ninfer")).expert("layers.0.mlp.experts", 0, 0)
    assert (got["all"] == got["without"]).all() and (got["all"] != plain).any()


def write(path, stats, tmp_path):
    import xxhash
    raw = b"NFIMPORT" + struct.pack("<II", 1, len(stats))
    for name, (counts, sums) in stats.items():
        raw += name.encode().ljust(96, b"\0") + struct.pack("<II", *sums.shape) + counts.astype("<u8").tobytes() + sums.astype("<f4").tobytes()
    path.write_bytes(raw + struct.pack("<Q", xxhash.xxh3_64_intdigest(raw)))


def refused(work, tmp_path, word):
    err = run("ninfer-convert", work / "src", tmp_path / "out.ninfer", "--imatrix", tmp_path / "im", status=1)[1]
    assert word in err and "im" in err and not (tmp_path / "out.ninfer").exists()


def test_statistics_of_another_model_are_refused(work, tmp_path):
    stats = parse((work / "im").read_bytes())
    bank = "layers.2.mlp.experts.down_proj"
    write(tmp_path / "im", {k: v for k, v in stats.items() if k != bank}, tmp_path)
    refused(work, tmp_path, f"no statistics for '{bank}'")
    write(tmp_path / "im", {**stats, "layers.9.self_attn.q_proj": stats[bank]}, tmp_path)
    refused(work, tmp_path, "'layers.9.self_attn.q_proj', which the model does not have")
    write(tmp_path / "im", {**stats, bank: (stats[bank][0], stats[bank][1][:, :-1])}, tmp_path)
    refused(work, tmp_path, f"'{bank}' has statistics of 7 experts with 23 columns")


def test_hostile_files(work, tmp_path):
    raw, stats = (work / "im").read_bytes(), parse((work / "im").read_bytes())
    first = next(iter(stats))
    for bytes_, word in ((b"", "not a file of importance"), (b"x" * 4000, "not a file of importance"), (raw[:-9], "checksum"),
                         (raw[:500] + bytes([raw[500] ^ 1]) + raw[501:], "checksum"), (raw[:8] + b"\2" + raw[9:], "version 2")):
        (tmp_path / "im").write_bytes(bytes_)
        refused(work, tmp_path, word)
    for value in (np.nan, np.inf, -1.0):
        c, s = stats[first]
        s = s.copy()
        s[0, 3] = value
        write(tmp_path / "im", {**stats, first: (c, s)}, tmp_path)
        refused(work, tmp_path, f"'{first}': the sum of column 3")
    import xxhash
    def sealed(body): return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    body = raw[:-8]
    name = first.encode().ljust(96, b"\0")
    for bad, word in ((body + b"\0" * 5, "5 bytes follow"), (body[:-4], "cut off"), (body[:12] + struct.pack("<I", 2 ** 32 - 1) + body[16:], "too many"),
                      (body[:112] + struct.pack("<II", 2 ** 32 - 1, 2 ** 32 - 1) + body[120:], "cut off"), (body[:16] + b"a" * 96 + body[112:], "no end"),
                      (body[:16] + b"\x1b" + body[17:], "not plain text"), (body[:16] + b"\0" * 96 + body[112:], "1 to 95 bytes"),
                      (body[:112] + struct.pack("<II", 0, 5) + body[120:], "not supported")):
        (tmp_path / "im").write_bytes(sealed(bad))
        refused(work, tmp_path, word)
    twice = b"NFIMPORT" + struct.pack("<II", 1, 2) + 2 * (name + struct.pack("<IIQf", 1, 1, 1, 1.0))
    (tmp_path / "im").write_bytes(sealed(twice))
    refused(work, tmp_path, "listed twice")


def test_files_that_cannot_be_written_or_read(work, tmp_path):
    err = run("ninfer-perplexity", work / "f32.ninfer", work / "text", *WINDOW, "--record-imatrix", tmp_path / "no" / "im", status=1)[1]
    assert "im" in err and "cannot" in err
    (tmp_path / "folder").mkdir()
    err = run("ninfer-perplexity", "/absent/model", work / "text", *WINDOW, "--record-imatrix", tmp_path / "folder", status=1)[1]
    assert "folder: is a folder" in err  # before the model is loaded
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]
    err = run("ninfer-convert", work / "src", tmp_path / "out", "--imatrix", tmp_path / "absent", status=1)[1]
    assert "absent" in err
