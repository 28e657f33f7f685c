"""The commands as a user meets them: flags, exit statuses, messages, pipes, Ctrl-C, the cache of conversions."""
import glob, json, os, pty, re, select, shutil, signal, subprocess, time

import numpy as np
import pytest

from support import BUILD, MODEL, run

THREADS = ("--threads", "1")
ENDLESS = ("--temperature", "100", "--top-k", "0", "--top-p", "1")  # nearly uniform: an end token is rare


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    made = f"{BUILD}/tiny-moe.ninfer"
    if not os.path.exists(made):
        made = str(tmp_path_factory.mktemp("model") / "tiny-moe.ninfer")
        run("ninfer-convert", MODEL, made)
    return made


@pytest.fixture
def checkpoint(tmp_path):
    """A private copy of the checkpoint folder."""
    to = tmp_path / "tiny-moe"
    to.mkdir()
    for f in os.listdir(MODEL):
        if os.path.isfile(f"{MODEL}/{f}") and not f.endswith(".txt"):
            shutil.copy2(f"{MODEL}/{f}", to)
    return to


def one_line(err, program):
    """The error is one line `program: ...`; returns it."""
    lines = [l for l in err.splitlines() if l.startswith(program + ":")]
    assert len(lines) == 1, err
    return lines[0]


# ---- every command ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("command", ["ninfer", "ninfer-run", "ninfer-perplexity"])
def test_help_version_usage(command):
    out, err = run(command, "--help")
    assert out.startswith(f"usage: {command} ") and err == ""
    assert "--threads" in out and "--version" in out
    out, _ = run(command, "--version")
    assert re.fullmatch(rf"{command} \d+\.\d+\.\d+\n", out)
    out, err = run(command, "--nonsense", status=2)
    assert out == "" and "unknown option '--nonsense'" in err and f"try '{command} --help'" in err
    _, err = run(command, "x", "y", "--threads", "0", status=2)
    assert "between 1 and 1024" in err or "unexpected argument" in err
    _, err = run(command, "--threads", "many", status=2)
    assert "--threads wants a whole number, not 'many'" in err


@pytest.mark.parametrize("args", [("ninfer", "-p", "x"), ("ninfer-perplexity", MODEL + "/text.txt"), ("ninfer-run", "--prompt", "x")])
def test_bad_models(args, tmp_path):
    def call(path, status=1):
        command, rest = args[0], args[1:]
        return one_line(run(command, path, *rest, status=status)[1], command)

    line = call(tmp_path / "absent.ninfer")
    assert "absent.ninfer" in line and "no such file" in line.lower()
    (tmp_path / "junk.ninfer").write_bytes(b"junk" * 5000)
    assert "junk.ninfer" in call(tmp_path / "junk.ninfer")
    (tmp_path / "empty.ninfer").write_bytes(b"")
    assert "empty.ninfer" in call(tmp_path / "empty.ninfer")
    if args[0] != "ninfer-run":
        assert "is a folder" in call(MODEL)


# ---- ninfer -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("args, message", [
    ((), "-p TEXT, -f FILE or --ids JSON"),
    (("-p", "a", "-f", "b"), "only one of -p, -f and --ids"),
    (("-p", "a", "--ids", "[1]"), "only one of -p, -f and --ids"),
    (("--ids", "[1, 2"), "--ids is not JSON"),
    (("--ids", '{"a": 1}'), "--ids wants a JSON array"),
    (("--ids", "[1, 2.5]"), "item 1 is not a token id"),
    (("--ids", "[-1]"), "item 0 is not a token id"),
    (("--ids", "[4294967296]"), "item 0 is not a token id"),
    (("--ids", "[1]", "--chat"), "--chat needs text"),
    (("--ids", "[1]", "--tokenize"), "--tokenize needs text"),
    (("-p", "a", "--tokenize", "--json"), "--json"),
    (("-p", "a", "--tokenize", "--dump-logits", "x.npy"), "--dump-logits"),
    (("-p", "a", "--stop", ""), "--stop must not be empty"),
    (("-p", "a", "--temperature", "hot"), "--temperature wants a number"),
    (("-p", "a", "--temperature", "-1"), "--temperature must be between"),
    (("-p", "a", "--top-p", "0"), "--top-p must be between"),
    (("-p", "a", "--min-p", "2"), "--min-p must be between"),
    (("-p", "a", "--top-k", "-1"), "--top-k must be between"),
    (("-p", "a", "--repetition-penalty", "0"), "--repetition-penalty must be between"),
    (("-p", "a", "--prefill-chunk", "0"), "--prefill-chunk must be between"),
    (("-p", "a", "-n", "-1"), "--max-tokens must be between"),
    (("-p", "a", "--seed", "-5"), "--seed must be between"),
    (("-p",), "--prompt needs a value"),
])
def test_usage_errors(model, args, message):
    out, err = run("ninfer", model, *args, status=2)
    assert out == "" and message in err, err
    assert not os.path.exists("x.npy")


def test_greedy_answer_is_streamed_text(model):
    ids = json.loads(run("ninfer", model, "-p", "The package libcurl4 is", "--tokenize")[0])
    assert ids and all(isinstance(i, int) for i in ids)
    out, err = run("ninfer", model, "-p", "The package libcurl4 is", "-n", 24, *THREADS)
    answer = json.loads(run("ninfer", model, "-p", "The package libcurl4 is", "-n", 24, "--json", *THREADS)[0])
    assert answer["text"] == out
    assert "tok/s" in err
    assert set(answer) == {"ids", "text", "prompt_tokens", "prefill_s", "decode_s", "finish"}
    assert answer["prompt_tokens"] == len(ids)
    assert answer["finish"] == ("length" if len(answer["ids"]) == 24 else "stop_token")
    assert answer["prefill_s"] > 0 and answer["decode_s"] >= 0
    by_ids = json.loads(run("ninfer", model, "--ids", json.dumps(ids), "-n", 24, "--json", "--prefill-chunk", 1, "--threads", 2)[0])
    assert by_ids["ids"] == answer["ids"]


def test_file_and_standard_input(model, tmp_path):
    text = "Debian is größer\n"
    (tmp_path / "p.txt").write_text(text)
    want = run("ninfer", model, "-p", text, "--tokenize")[0]
    assert run("ninfer", model, "-f", tmp_path / "p.txt", "--tokenize")[0] == want
    assert run("ninfer", model, "-f", "-", "--tokenize", input=text)[0] == want


def test_tokenize_of_nothing_and_of_chat(model):
    assert run("ninfer", model, "-p", "", "--tokenize")[0] == "[]\n"
    ids = json.loads(run("ninfer", model, "-p", "Hi", "--chat", "--tokenize")[0])
    raw = json.loads(run("ninfer", model, "-p", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "--tokenize")[0])
    assert ids == raw


def test_bad_prompts(model, tmp_path):
    assert "-p: the prompt is empty" in one_line(run("ninfer", model, "-p", "", status=1)[1], "ninfer")
    assert "prompt is empty" in one_line(run("ninfer", model, "--ids", "[]", status=1)[1], "ninfer")
    empty, bad = tmp_path / "empty.txt", tmp_path / "bad.txt"
    empty.write_bytes(b"")
    bad.write_bytes(b"good \xff bad")
    assert f"{empty}: the prompt is empty" in run("ninfer", model, "-f", empty, status=1)[1]
    line = one_line(run("ninfer", model, "-f", bad, status=1)[1], "ninfer")
    assert f"{bad}: not valid UTF-8 at byte 5" in line
    assert "-p: not valid UTF-8 at byte 1" in run("ninfer", model, "-p", b"x\xc3".decode("utf-8", "surrogateescape"), status=1)[1]
    line = run("ninfer", model, "-p", "x", "--stop", b"\xc3".decode("utf-8", "surrogateescape"), status=1)[1]
    assert "--stop: not valid UTF-8" in line
    assert str(tmp_path / "absent.txt") in run("ninfer", model, "-f", tmp_path / "absent.txt", status=1)[1]
    assert "99999" in one_line(run("ninfer", model, "--ids", "[1, 99999]", status=1)[1], "ninfer")
    (tmp_path / "nul.txt").write_bytes(b"a\0b")
    assert "NUL" in run("ninfer", model, "-f", tmp_path / "nul.txt", "--chat", status=1)[1]
    run("ninfer", model, "-f", tmp_path / "nul.txt", "-n", 1)  # as raw text it is a byte like others


def test_context_limits(model):
    line = one_line(run("ninfer", model, "--ids", json.dumps([40] * 20), "--max-context", 10, status=1)[1], "ninfer")
    assert "20 tokens" in line and "10" in line
    line = one_line(run("ninfer", model, "-p", "x", "--max-context", 100000, status=1)[1], "ninfer")
    assert "--max-context" in line and "100000" in line and "8192" in line
    answer = json.loads(run("ninfer", model, "--ids", "[40, 41]", "--max-context", 8, "--ignore-eos", "--json", *THREADS)[0])
    assert answer["finish"] == "context" and 6 <= len(answer["ids"]) <= 7


def test_stop_strings(model):
    prompt = ("-p", "The package libcurl4 is", "-n", 24, *THREADS)
    full = json.loads(run("ninfer", model, *prompt, "--json")[0])["text"]
    word = full.split()[3]
    at = full.index(word)
    for stops in (("--stop", word), ("--stop", "never said", "--stop", word), (f"--stop={word}",)):
        answer = json.loads(run("ninfer", model, *prompt, *stops, "--json")[0])
        assert answer["text"] == full[:at] and answer["finish"] == "stop_string"
        assert run("ninfer", model, *prompt, *stops)[0] == full[:at]


def test_sampling_flags(model):
    ask = ("-p", "Define harbour.", "--chat", "-n", 24, "--json", *THREADS)

    def text(*flags):
        return json.loads(run("ninfer", model, *ask, *flags)[0])["text"]

    assert text() == text("--seed", 0) == text("--temperature", 0.6, "--top-p", 0.95, "--top-k", 20)  # the model's own
    assert len({text("--seed", s, "--temperature", 1.5) for s in range(4)}) > 1
    greedy = text("--temperature", 0)
    assert greedy == text("--top-k", 1, "--seed", 7) == text("--top-p", 1e-9, "--seed", 7) == text("--min-p", 1, "--seed", 7)
    assert greedy != text("--temperature", 0, "--repetition-penalty", 5)
    _, err = run("ninfer", model, "-p", "x", "-n", 1, "--top-k", 5)
    assert "--top-k has no effect at temperature 0" in err


def test_ignore_eos(model):
    ask = ("-p", "Who are you?", "--chat", "--temperature", 0, "-n", 60, "--json", *THREADS)
    ends = json.loads(run("ninfer", model, *ask)[0])
    goes_on = json.loads(run("ninfer", model, *ask, "--ignore-eos")[0])
    assert ends["finish"] == "stop_token" and goes_on["finish"] == "length" and len(goes_on["ids"]) == 60
    assert goes_on["ids"][:len(ends["ids"])] == ends["ids"]


def test_dump_logits(model, tmp_path):
    path = tmp_path / "logits.npy"
    out, _ = run("ninfer", model, "-p", "The package libcurl4 is", "--dump-logits", path)
    assert out == ""  # logits only, unless -n asks for an answer
    logits = np.load(path)
    ids = json.loads(run("ninfer", model, "-p", "The package libcurl4 is", "--tokenize")[0])
    assert logits.dtype == np.float32 and logits.shape == (len(ids), 8192) and np.isfinite(logits).all()
    out, _ = run("ninfer", model, "-p", "The package libcurl4 is", "--dump-logits", path, "-n", 1, "--json")
    assert json.loads(out)["ids"] == [int(logits[-1].argmax())]
    assert os.listdir(tmp_path) == ["logits.npy"]
    before = path.read_bytes()
    run("ninfer", model, "--ids", json.dumps([40] * 20), "--max-context", 10, "--dump-logits", path, status=1)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["logits.npy"]
    # Refused before the model is even looked at.
    line = one_line(run("ninfer", "absent.ninfer", "-p", "x", "--dump-logits", tmp_path / "no" / "x.npy", status=1)[1], "ninfer")
    assert str(tmp_path / "no" / "x.npy") in line
    assert "/dev/full" in run("ninfer", model, "-p", "x", "--dump-logits", "/dev/full", status=1)[1]


def test_verify(model, tmp_path):
    _, err = run("ninfer", model, "-p", "x", "-n", 1, "--verify")
    assert "verify" in err
    broken = tmp_path / "broken.ninfer"
    data = bytearray(open(model, "rb").read())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    assert "broken.ninfer" in one_line(run("ninfer", broken, "-p", "x", "-n", 1, "--verify", status=1)[1], "ninfer")


def test_full_disk_on_standard_output(model):
    with open("/dev/full", "w") as full:
        for flags in ((), ("--json",), ("--tokenize",)):
            p = subprocess.run([f"{BUILD}/ninfer", model, "-p", "Debian is", "-n", "4", *flags], stdout=full, stderr=subprocess.PIPE, text=True)
            assert p.returncode == 1 and "standard output" in p.stderr, p.stderr


def test_broken_pipe_ends_quietly(model):
    p = subprocess.Popen([f"{BUILD}/ninfer", model, "-p", "Debian is", "-n", "4000", "--ignore-eos", *THREADS],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
    assert p.stdout.read(1)
    p.stdout.close()
    err = p.stderr.read()
    assert p.wait(60) == -signal.SIGPIPE and err == b""


def test_interrupt_ends_ninfer(model):
    p = subprocess.Popen([f"{BUILD}/ninfer", model, "-p", "Debian is", "-n", "8000", "--ignore-eos", *THREADS],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=60)
    assert p.returncode == -signal.SIGINT and first + out


# ---- ninfer-perplexity --------------------------------------------------------------------------------------------------

def test_perplexity(model, tmp_path):
    text, nll = MODEL + "/chats.txt", tmp_path / "nll.npy"
    args = (model, text, "--window", 64, "--max-windows", 3, "--json", *THREADS)
    out, err = run("ninfer-perplexity", *args, "--token-nll", nll)
    result = json.loads(out)
    assert result["tokens"] == 3 * 63 and result["windows"] == 3
    tokens = np.load(nll)
    assert tokens.dtype == np.float32 and tokens.shape == (3, 63)
    assert abs(tokens.astype(float).mean() - result["nll"]) < 1e-6
    assert abs(np.exp(result["nll"]) - result["ppl"]) < 1e-9 * result["ppl"]
    assert 0.5 < result["nll"] < 4 and "score" in err

    # A window is scored alone: its numbers are those of its logits, whatever the stride. Here against --dump-logits.
    ids = json.loads(run("ninfer", model, "-f", text, "--tokenize")[0])
    strided = tmp_path / "strided.npy"
    run("ninfer-perplexity", model, text, "--window", 64, "--stride", 10, "--max-windows", 8, "--token-nll", strided, *THREADS)
    at = 7 * 10
    run("ninfer", model, "--ids", json.dumps(ids[at:at + 64]), "--dump-logits", tmp_path / "l.npy", *THREADS)
    logits = np.load(tmp_path / "l.npy").astype(float)
    want = [np.logaddexp.reduce(logits[i]) - logits[i, ids[at + i + 1]] for i in range(63)]
    assert np.abs(np.load(strided)[7] - want).max() < 1e-5


def test_perplexity_counts_full_windows_only(model, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Debian is a free operating system. " * 6)
    n = len(json.loads(run("ninfer", model, "-f", short, "--tokenize")[0]))
    for window, stride in ((10, 10), (10, 3), (n, 1), (2, 1)):
        out, _ = run("ninfer-perplexity", model, short, "--window", window, "--stride", stride, "--json", *THREADS)
        assert json.loads(out)["tokens"] == ((n - window) // stride + 1) * (window - 1)
    line = one_line(run("ninfer-perplexity", model, short, "--window", n + 1, status=1)[1], "ninfer-perplexity")
    assert f"{n} tokens" in line and "--window" in line
    line = one_line(run("ninfer-perplexity", model, short, "--window", 100000, status=1)[1], "ninfer-perplexity")
    assert "--window" in line
    out, _ = run("ninfer-perplexity", model, short, "--window", 10)
    assert "perplexity" in out


def test_perplexity_errors(model, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\xfe")
    assert "not valid UTF-8 at byte 0" in run("ninfer-perplexity", model, bad, status=1)[1]
    assert "absent.txt" in run("ninfer-perplexity", model, tmp_path / "absent.txt", status=1)[1]
    run("ninfer-perplexity", model, status=2)
    assert "between 2 and" in run("ninfer-perplexity", model, bad, "--window", 1, status=2)[1]
    line = run("ninfer-perplexity", model, MODEL + "/text.txt", "--token-nll", tmp_path / "no" / "x.npy", status=1)[1]
    assert "x.npy" in one_line(line, "ninfer-perplexity")


# ---- ninfer-run ---------------------------------------------------------------------------------------------------------

def test_prompt_answers_once(model):
    out, err = run("ninfer-run", model, "--prompt", "Who are you?", "--temperature", 0, *THREADS)
    same = json.loads(run("ninfer", model, "-p", "Who are you?", "--chat", "--temperature", 0, "--json", *THREADS)[0])
    assert out == same["text"].strip() + "\n"
    assert re.search(r"^\[\d+ tokens; prefill \d+ tok/s .*decode \d+ tok/s\]$", err, re.M)
    assert "\033" not in out + err
    out, _ = run("ninfer-run", model, "--prompt", "Who are you?", "--temperature", 0, "--max-tokens", 3, *THREADS)
    assert same["text"].startswith(out.strip()) and len(out) < len(same["text"])


def test_run_usage(model):
    assert "the prompt is empty" in run("ninfer-run", model, "--prompt", "", status=1)[1]
    assert "--type must be" in run("ninfer-run", model, "--type", "q9", status=2)[1]
    assert "--type must be" in run("ninfer-run", model, "--type", "u8", status=2)[1]
    assert "--think must be" in run("ninfer-run", model, "--think", "hard", status=2)[1]
    assert "8192" in run("ninfer-run", model, "--max-context", 10000, "--prompt", "x", status=1)[1]
    assert "--system" in run("ninfer-run", model, "--prompt", "x", "--system", b"\xff".decode("utf-8", "surrogateescape"), status=1)[1]
    assert "not valid UTF-8" in run("ninfer-run", model, "--prompt", b"\xff".decode("utf-8", "surrogateescape"), status=1)[1]


def test_chat_through_a_pipe(model):
    lines = "Who are you?\n\n/think on\nDefine harbour.\n/think sideways\n/stats\n/nonsense\n/help\n/reset\n/stats\n/exit\nnever read\n"
    out, err = run("ninfer-run", model, "--temperature", 0, *THREADS, input=lines, status=1)  # two commands were wrong
    assert out.startswith("I am NInfer Tiny") and "> " not in out
    assert len(re.findall(r"tok/s\]|tok/s; ", err)) >= 2
    assert "thinking: on" in err and "/think wants on, off or auto, not 'sideways'" in err
    assert "unknown command '/nonsense'" in err and "/reset              forget" in err
    assert "answers  2," in err and re.search(r"context  [1-9]\d* of 8192", err) and "context  0 of 8192" in err


def test_history_is_remembered_and_reused(model):
    out, err = run("ninfer-run", model, "--temperature", 0, *THREADS, input="What is 23 + 19?\nWho are you?\n")
    first, second = re.findall(r"\((\d+) new of (\d+)\)", err)
    assert first[0] == first[1]                     # nothing to reuse yet
    assert int(second[1]) > int(first[1])           # the second prompt holds the first turn
    assert int(second[0]) < int(second[1]) - int(first[1])  # which was not computed again
    # The reused state is the state: the whole conversation evaluated at once gives the same answer.
    answers = out.splitlines()
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    whole = turn.format("What is 23 + 19?") + answers[0] + "<|im_end|>\n" + turn.format("Who are you?")
    assert run("ninfer", model, "-p", whole, *THREADS)[0].strip() == answers[1].strip()


def test_system_message_and_think_change_the_prompt(model):
    def prompt_tokens(*flags, lines="Hi\n"):
        err = run("ninfer-run", model, "--temperature", 0, "--max-tokens", 4, *THREADS, *flags, input=lines)[1]
        return int(re.search(r"new of (\d+)\)", err)[1])

    auto, off, on = prompt_tokens(), prompt_tokens("--think", "off"), prompt_tokens("--think", "on")
    assert auto == off > on  # this template closes the thinking block itself unless thinking is on
    assert prompt_tokens(lines="/think on\nHi\n") == on
    assert prompt_tokens("--system", "Be brief.") > auto


def test_slash_message_and_bad_line(model):
    _, err = run("ninfer-run", model, "--max-tokens", 4, *THREADS, input=" /etc is a folder\n")
    assert "unknown command" not in err and "tok/s" in err
    p = subprocess.run([f"{BUILD}/ninfer-run", model, "--max-tokens", "4", *THREADS], input=b"bad \xff\nWho are you?\n", capture_output=True)
    assert p.returncode == 1 and b"not valid UTF-8 at byte 4" in p.stderr and b"tok/s" in p.stderr


def test_full_context_is_said(model):
    ask = "Describe the Debian package postgresql.\n"
    out, err = run("ninfer-run", model, "--temperature", 0, "--max-context", 30, *THREADS, input=ask * 2, status=1)
    assert "the context is full: /reset" in err
    assert re.search(r"ninfer-run: .*\d+ tokens, the context holds 30", err) and "nothing was forgotten: /reset" in err
    out, err = run("ninfer-run", model, "--temperature", 0, "--max-context", 40, *THREADS, input=ask + "/reset\n" + ask)
    assert out.splitlines()[0] == out.splitlines()[-1]


def test_dry_run(model, checkpoint, tmp_path):
    out, _ = run("ninfer-run", model, "--dry-run", "--max-context", 1000)
    number = {k: int(v) for k, v in re.findall(r"^ *(\S.*?) +(\d+) bytes", out, re.M)}
    assert number["KV cache"] == 1000 * number["KV cache per token"]
    assert number["sum"] == number["weights"] + number["KV cache"] + number["recurrent state"] + number["workspace"]
    assert 0 < number["of these experts"] < number["weights"]
    assert "8192" in run("ninfer-run", model, "--dry-run", "--max-context", 9000, status=1)[1]

    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    out, _ = run("ninfer-run", checkpoint, "--dry-run", env=env)
    number = {k: int(v) for k, v in re.findall(r"^ *(\S.*?) +(\d+) bytes", out, re.M)}
    assert not (tmp_path / "cache").exists()
    run("ninfer-run", checkpoint, "--prompt", "x", "--max-tokens", 1, env=env)
    (made,) = glob.glob(str(tmp_path / "cache/ninfer/*.ninfer"))
    assert 0.8 < os.path.getsize(made) / number["conversion would write"] <= 1  # an upper bound, close for larger models
    out, _ = run("ninfer-run", checkpoint, "--dry-run", env=env)
    assert "already done" in out
    loaded = {k: int(v) for k, v in re.findall(r"^ *(\S.*?) +(\d+) bytes", out, re.M)}
    for what in ("KV cache per token", "KV cache", "recurrent state", "workspace"):
        assert loaded[what] == number[what]


def test_conversion_is_cached(checkpoint, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ask = ("ninfer-run", checkpoint, "--prompt", "Who are you?", "--max-tokens", 3, *THREADS)

    def conversions():
        return sorted(glob.glob(str(tmp_path / "cache/ninfer/*.ninfer*")))

    first, err = run(*ask, env=env)
    assert "converting" in err and len(conversions()) == 1
    made = conversions()
    again, err = run(*ask, env=env)
    assert "convert" not in err and conversions() == made and again == first

    _, err = run(*ask, "--type", "i8", env=env)  # another type is another container beside it
    assert "converting" in err and len(conversions()) == 2

    os.utime(checkpoint / "config.json", ns=(0, 1_600_000_000_123_456_789))
    _, err = run(*ask, env=env)
    assert "converting" in err and len(conversions()) == 2 and made[0] not in conversions()  # the old one is gone

    (changed,) = [c for c in conversions() if "-c4-" in c]
    with open(changed, "r+b") as f:
        f.write(b"\0" * 20000)
    out, err = run(*ask, env=env)
    assert "damaged" in err and "converting" in err and out == first

    with open(changed, "r+b") as f:
        f.truncate(os.path.getsize(changed) // 2)
    out, err = run(*ask, env=env)
    assert "damaged" in err and out == first


def test_two_processes_convert_once(checkpoint, tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [subprocess.Popen([f"{BUILD}/ninfer-run", str(checkpoint), "--prompt", "Who are you?", "--max-tokens", "3", *THREADS], env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], results
    assert sum("converting" in err for _, err in results) == 1
    assert results[0][0] == results[1][0]


def test_bad_checkpoints_and_caches(checkpoint, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "empty").mkdir()
    line = one_line(run("ninfer-run", tmp_path / "empty", status=1, env=env)[1], "ninfer-run")
    assert "holds no checkpoint" in line
    (tmp_path / "file").write_text("")
    line = one_line(run("ninfer-run", checkpoint, "--prompt", "x", status=1, env={"XDG_CACHE_HOME": str(tmp_path / "file")})[1], "ninfer-run")
    assert str(tmp_path / "file") in line
    os.remove(checkpoint / "model-00002-of-00004.safetensors")
    line = one_line(run("ninfer-run", checkpoint, "--prompt", "x", status=1, env=env)[1], "ninfer-run")
    assert "model-00002-of-00004.safetensors" in line
    assert glob.glob(str(tmp_path / "cache/ninfer/*.ninfer*")) == []


def test_embedded_model(model, tmp_path):
    share = tmp_path / "share"
    share.mkdir()
    line = one_line(run("ninfer-run", "--prompt", "x", status=1, env={"NINFER_SHARE": str(share)})[1], "ninfer-run")
    assert str(share) in line
    os.symlink(os.path.abspath(model), share / "tiny-moe.ninfer")
    out, _ = run("ninfer-run", "--prompt", "Who are you?", *THREADS, env={"NINFER_SHARE": str(share)})
    assert "NInfer" in out
    # As installed: PREFIX/bin and PREFIX/share/ninfer.
    (tmp_path / "bin").mkdir()
    shutil.copy2(f"{BUILD}/ninfer-run", tmp_path / "bin")
    p = subprocess.run([tmp_path / "bin/ninfer-run", "--dry-run"], capture_output=True, text=True)
    assert p.returncode == 1 and "embedded model" in p.stderr
    (tmp_path / "share/ninfer").mkdir()
    os.symlink(os.path.abspath(model), tmp_path / "share/ninfer/tiny-moe.ninfer")
    p = subprocess.run([tmp_path / "bin/ninfer-run", "--dry-run"], capture_output=True, text=True)
    assert p.returncode == 0 and "tiny-moe" in p.stdout


# ---- ninfer-run on a terminal -------------------------------------------------------------------------------------------

class Terminal:
    """A program under a pseudo terminal."""

    def __init__(self, args, env):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(args[0], args, {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **env})

    def send(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, timeout=60):
        """Waits until the output since the last match holds the pattern; returns what came up to its end."""
        end = time.monotonic() + timeout
        while True:
            match = re.search(pattern, self.seen, re.S)
            if match:
                before, self.seen = self.seen[:match.end()], self.seen[match.end():]
                return before
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:  # the other side is closed
                    assert re.search(pattern, self.seen, re.S), f"ended without {pattern!r}: {self.seen!r}"

    def leave(self, keys, timeout=30):
        """Sends the keys that end the program; its exit status must be 0."""
        self.send(keys)
        assert self.wait(timeout) == 0, self.seen

    def wait(self, timeout):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    pass
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the program did not end")


def start(model, tmp_path, *flags):
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    return Terminal([f"{BUILD}/ninfer-run", model, *THREADS, *flags], env)


def test_ctrl_c_stops_the_answer_only(model, tmp_path):
    t = start(model, tmp_path, *ENDLESS, "--seed", "1")
    t.expect("Ctrl-D leaves")
    t.expect("> ")
    t.send("Say much.\r")
    t.expect(r"much\.\r\n.{200}")  # the answer is running
    t.send("\x03")
    t.expect("; stopped]")
    t.expect("> ")
    t.send("/stats\r")
    t.expect("answers  1,")
    t.expect("> ")
    t.send("half a li\x03")
    t.expect(r"Ctrl-D or /exit leaves\)")
    t.expect("> ")
    t.send("\x03")  # also twice
    t.expect(r"Ctrl-D or /exit leaves\)")
    t.expect("> ")
    t.send("Again.\r")
    t.expect(r"Again\.\r\n.{200}")
    t.send("\x03")
    t.expect("; stopped]")
    t.expect("> ")
    t.leave("/exit\r")


def test_editing_history_and_ctrl_d(model, tmp_path):
    t = start(model, tmp_path, "--max-tokens", "2")
    t.expect("> ")
    t.send("/statx\x7fs\r")  # backspace
    t.expect("answers  0,")
    t.expect("> ")
    t.send("\x1b[A\r")  # up: the line before
    t.expect("answers  0,")
    t.expect("> ")
    t.send("größer é\r")
    t.expect(r"cut at --max-tokens\]")
    t.expect("> ")
    t.leave("\x04")
    t = start(model, tmp_path, "--max-tokens", "2")  # history of the run before
    t.expect("> ")
    t.send("\x1b[A")
    t.expect("größer é")
    t.send("\x1b[A\r")
    t.expect("answers  0,")
    t.expect("> ")
    t.leave("\x04")


def test_thinking_is_dim(model, tmp_path):
    t = start(model, tmp_path, "--temperature", "0", "--think", "on", "--max-tokens", "200")
    t.expect("> ")
    t.send("What is 23 + 19?\r")
    shown = t.expect(r"tok/s[^\n]*\]")
    assert "<think>" not in shown and "</think>" not in shown
    answer = shown[shown.index("19?") + 3:]
    assert answer.index("\x1b[2m") < answer.index("\x1b[0m")
    t.expect("> ")
    t.leave("/exit\r")


# ---- the example --------------------------------------------------------------------------------------------------------

def test_example(model, tmp_path):
    out, _ = run("example-generate", model, "The package libcurl4 is")
    text, _, last = out.rstrip("\n").rpartition("\n")
    assert text and re.fullmatch(r"\[\d+ tokens after a prompt of \d+: .+\]", last)
    assert "absent" in run("example-generate", tmp_path / "absent.ninfer", "x", status=1)[1]
    run("example-generate", model, status=2)


def test_installation(model, tmp_path):
    """What `make install` puts down is enough to build and run a program elsewhere."""
    subprocess.run(["make", "-s", f"BUILD={BUILD}", f"DESTDIR={tmp_path}", "PREFIX=/usr", "install"], check=True, capture_output=True)
    usr = tmp_path / "usr"
    for name in ("ninfer", "ninfer-run", "ninfer-convert", "ninfer-perplexity"):
        assert os.access(usr / "bin" / name, os.X_OK)
    p = subprocess.run([usr / "bin/ninfer-run", "--prompt", "Who are you?", *THREADS], capture_output=True, text=True)
    assert p.returncode == 0 and "NInfer" in p.stdout, p.stderr  # the installed model, found beside the program

    source = open("runtime/examples/generate.c").read()
    (tmp_path / "generate.c").write_text(source.replace('"runtime/ninfer.h"', "<ninfer.h>"))
    env = {**os.environ, "PKG_CONFIG_PATH": str(usr / "lib/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(tmp_path)}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "ninfer"], env=env, check=True, capture_output=True, text=True).stdout.split()
    sanitize = ["-fsanitize=address,undefined"] if "san" in os.path.basename(BUILD) else []
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-Wall", "-Wextra", "-Werror", *sanitize, tmp_path / "generate.c", "-o",
                    tmp_path / "generate", *flags], check=True)
    p = subprocess.run([tmp_path / "generate", model, "The package libcurl4 is"], capture_output=True, text=True,
                       env={**os.environ, "LD_LIBRARY_PATH": str(usr / "lib")})
    assert p.returncode == 0 and p.stdout == run("example-generate", model, "The package libcurl4 is")[0]

    exported = subprocess.run(["nm", "-D", "--defined-only", usr / "lib/libninfer.so"], check=True, capture_output=True, text=True).stdout
    names = {line.split()[2] for line in exported.splitlines() if line.split()[1] == "T"}
    declared = set(re.findall(r"^NF_API [^;(]*?\b(nf_\w+)\(", (usr / "include/ninfer.h").read_text(), re.M))
    assert names == declared  # exactly the public API


def test_bench_kernels_reports_every_type(tmp_path):
    types, rows = ["c4", "c4 nl", "mxfp4", "nvfp4", "z4", "a4", "s5", "s6", "i8", "f8", "bf16", "f16", "f32"], [1, 2, 4, 8, 64, 512]
    out, _ = run("ninfer-bench", "kernels", "--mib", "16", "--runs", "1", "--columns", "256", "--threads", "2",
                 "--json", tmp_path / "k.json", "--markdown", tmp_path / "k.md")
    report = json.loads((tmp_path / "k.json").read_text())
    assert [(r["type"], r["rows"]) for r in report["results"]] == [(t, n) for t in types for n in rows]
    for r in report["results"]:
        assert r["cold_gb_s"]["min"] > 0 and r["warm_gb_s"]["min"] > 0
        assert r["of_read"] == pytest.approx(r["cold_gb_s"]["median"] / r["read_gb_s"]["median"], rel=1e-4)
    assert (tmp_path / "k.md").read_text() == out and all(out.count(f"\n| {t} | ") == len(rows) for t in types)
    assert "--type" in run("ninfer-bench", "kernels", "--type", "c3", status=2)[1]
    assert "kernels" in run("ninfer-bench", "--help")[0]
    run("ninfer-bench", status=2)
    run("ninfer-bench", "nothing", status=2)


def test_bench_model_reports_rates_and_bytes_of_a_token(model, tmp_path):
    out, _ = run("ninfer-bench", "model", model, "--pp", "20", "--tg", "6", "--runs", "2", "--mib", "16", *THREADS,
                 "--json", tmp_path / "m.json", "--markdown", tmp_path / "m.md")
    r = json.loads((tmp_path / "m.json").read_text())
    assert (tmp_path / "m.md").read_text() == out
    assert r["prefill_tok_s"]["min"] > 0 and r["decode_tok_s"]["min"] > 0 and (r["pp"], r["tg"]) == (20, 6)
    size = os.path.getsize(model)
    assert size / 20 < r["token_bytes"] < size  # some experts of many, never the whole file
    assert r["decode_gb_s"] == pytest.approx(r["decode_tok_s"]["median"] * r["token_bytes"] / 1e9, rel=1e-3)
    assert r["of_read"]["min"] > 0
    assert "smaller --pp" in run("ninfer-bench", "model", model, "--pp", "1000000", status=1)[1]
    run("ninfer-bench", "model", status=2)
    run("ninfer-bench", "model", tmp_path / "none.ninfer", status=1)


def test_bench_model_takes_turns(model):
    def turns(lines, status=0):
        p = subprocess.run([f"{BUILD}/ninfer-bench", "model", model, "--pp", "20", "--tg", "6", "--mib", "16", "--turns", *THREADS], input=lines,
                           capture_output=True, text=True)
        assert p.returncode == status, p.stderr
        return p.stdout.splitlines(), p.stderr
    answers, _ = turns("start\ndecode 4\ndecode 2\nprefill\nread\nstart\ndecode 1\n")
    about = json.loads(answers[0].removeprefix("ready "))
    assert about["token_bytes"] > 0 and about["isa"]
    start, four, two, prefill, read, again, one = map(float, answers[1:])
    assert start == again == 0 and min(four, two, prefill, read, one) > 0
    assert len(turns("start\ndecode 4\ndecode 3\n", 1)[0]) == 3  # more tokens than --tg
    for wrong in ("decode 1\n", "start\ndecode 0\n", "start\nprefill\ndecode 1\n", "stop\n"):
        assert "commands are" in turns(wrong, 1)[1]


@pytest.mark.parametrize("like,kind,layers", [("qwen3.6-35b-a3b", "c4", 4), ("qwen3-30b-a3b", "f8", 1)])
def test_bench_make_model_writes_a_model_that_runs_and_depends_on_the_seed(model, tmp_path, like, kind, layers):
    def make(name, *more, status=0):
        return run("ninfer-bench", "make-model", "--like", like, "--layers", layers, "--experts", 8, "--vocab", 8192, "--type", kind,
                   "--tokenizer-from", model, tmp_path / name, *more, status=status)[1]
    def logits(name):
        run("ninfer", tmp_path / name, "--ids", "[35, 459, 490]", "--dump-logits", tmp_path / "logits.npy")
        return np.load(tmp_path / "logits.npy")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)): make(f"{name}.ninfer", "--seed", seed)
    run("ninfer-convert", "verify", tmp_path / "a.ninfer")
    a = logits("a.ninfer")
    assert np.isfinite(a).all() and 0.1 < a.std() < 10
    assert np.array_equal(a, logits("b.ninfer")) and not np.array_equal(a, logits("c.ninfer"))
    assert "more than --vocab 100" in make("d.ninfer", "--vocab", 100, status=1)
    assert not (tmp_path / "d.ninfer").exists()
    assert "families" in run("ninfer-bench", "make-model", "--like", "flash-next", tmp_path / "e.ninfer", status=2)[1]
