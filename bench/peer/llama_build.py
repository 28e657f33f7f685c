"""llama.cpp for the comparison: its source comes inside the PyPI source package llama-cpp-python; it is built for the
processor at hand. Knows pip, cmake and ninja; nothing of models."""
import os, shutil, subprocess, sys, tarfile
from pathlib import Path

FLAGS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DBUILD_SHARED_LIBS=ON",
         "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"]


def logged(command, log):
    """Runs a command with its output in a file, of which the end is shown when it fails."""
    with open(log, "w") as out:
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
    if status:
        tail = "".join(open(log, errors="replace").readlines()[-20:])
        sys.exit(f"{tail}compare: '{' '.join(map(str, command))}' failed with status {status}; all of it is in {log}")


def tool(name):
    """A build tool of the system or, from PyPI, of this environment."""
    here = Path(sys.executable).parent / name
    return shutil.which(name) or (str(here) if here.exists() else None)


def need_tools(work):
    missing = [name for name in ("cmake", "ninja") if not tool(name)]
    if missing:
        logged([sys.executable, "-m", "pip", "install", *missing], work / "pip-tools.log")


def download(version, work):
    """The unpacked source of llama.cpp."""
    package = f"llama_cpp_python-{version}"
    source = work / package / "vendor" / "llama.cpp"
    if (source / "CMakeLists.txt").exists():
        return source
    archive = work / f"{package}.tar.gz"
    if not archive.exists():
        print(f"download llama-cpp-python {version} (source)", file=sys.stderr)
        logged([sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary",
                "llama-cpp-python", "-d", str(work), f"llama-cpp-python=={version}"], work / "pip-download.log")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    if not (source / "CMakeLists.txt").exists():
        sys.exit(f"compare: {archive} holds no vendor/llama.cpp")
    return source


def build(source, folder, log_folder, jobs):
    need_tools(log_folder)
    print(f"build llama.cpp in {folder} (minutes, the first time)", file=sys.stderr)
    make = [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-G", "Ninja"]
    logged([tool("cmake"), "-S", str(source), "-B", str(folder), *make, *FLAGS], log_folder / "cmake.log")
    logged([tool("ninja"), "-C", str(folder), f"-j{jobs}", "llama-bench", "llama"], log_folder / "ninja.log")


def cache_value(folder, key):
    for line in open(folder / "CMakeCache.txt"):
        if line.startswith(key + ":"):
            return line.split("=", 1)[1].strip()
    return None


class Llama:
    """A built llama.cpp: `bench` is llama-bench, `runs` the small program beside this file."""

    def __init__(self, work, llama_dir, version, jobs):
        folder = work / "llama-build"
        if llama_dir and (llama_dir / "CMakeCache.txt").exists():
            folder, source = llama_dir, Path(cache_value(llama_dir, "CMAKE_HOME_DIRECTORY"))
            self.origin = "a build that was there"
        else:
            if llama_dir and not (llama_dir / "CMakeLists.txt").exists():
                sys.exit(f"compare: --llama-dir {llama_dir}: neither a checkout nor a build folder of llama.cpp")
            source = llama_dir or download(version, work)
            self.origin = "a checkout that was there" if llama_dir else f"source in PyPI llama-cpp-python {version}"
            build(source, folder, work, jobs)
        self.bench = folder / "bin" / "llama-bench"
        if not self.bench.exists():
            sys.exit(f"compare: {self.bench} is missing: build the target llama-bench")
        self.flags = [f"{k}={cache_value(folder, k)}" for k in
                      ("CMAKE_BUILD_TYPE", "GGML_NATIVE", "GGML_OPENMP", "GGML_CPU_REPACK", "GGML_LLAMAFILE")]
        self.runs = work / "llama-runs"
        lib = (folder / "bin").resolve()
        logged([os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-o", str(self.runs),
                str(Path(__file__).with_name("llama_runs.c")), f"-I{source}/include", f"-I{source}/ggml/include",
                f"-L{lib}", f"-Wl,-rpath,{lib}", f"-Wl,-rpath-link,{lib}", "-lllama", "-lggml-cpu", "-lggml-base"],
               work / "runs.log")
