"""Compile the modules listed under `[tool.trivium]` in pyproject.toml with mypyc.

`TRIVIUM_PURE=1` builds without compiling; so does a machine without a C compiler, saying so in one
line. The packages run the same either way, only slower.
"""

import os
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.sysconfig import customize_compiler
from setuptools.command.build_ext import build_ext

#: the commands that compile; the others, which only ask for metadata, must be quick and quiet
BUILD_COMMANDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}
CONFIG = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]


def source_file(module: str) -> str:
    package, _, rest = module.partition(".")
    return f"{CONFIG['setuptools']['package-dir'][package]}/{rest.replace('.', '/')}.py"


def can_compile() -> bool:
    """Whether a C file that includes Python.h compiles here."""
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text("#include <Python.h>\n")
        compiler = new_compiler()
        customize_compiler(compiler)
        try:
            compiler.compile(
                [str(probe)], output_dir=folder, include_dirs=[sysconfig.get_path("include")]
            )
        except Exception:
            return False
    return True


def extensions() -> list[Any]:
    files = [source_file(module) for module in CONFIG["trivium"]["compiled"]]
    if os.environ.get("TRIVIUM_PURE") == "1" or not BUILD_COMMANDS.intersection(sys.argv):
        return []
    if not can_compile():
        print(
            "trivium: no C compiler with Python headers found, building pure Python (slower)",
            file=sys.stderr,
        )
        return []
    from mypyc.build import mypycify

    # The build environment lacks the runtime dependencies and the rest of the package is checked
    # by `./dev lint`, so only the compiled files themselves are type-checked here.
    options = [
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--no-warn-unused-ignores",
        "--no-warn-return-any",
    ]
    return mypycify(
        [*options, *files],
        opt_level="3",
        debug_level="0",
        group_name="trivium",
        # A C file per module, so that they compile at the same time, and only those that changed.
        # The broker executes the same number of instructions per message as with one file.
        multi_file=True,
    )


class ParallelBuild(build_ext):
    """Compiles an extension's C files on all cores, leaving out those that are up to date."""

    def build_extension(self, ext: Any) -> None:
        compile_one = self.compiler.compile
        folders = {Path(source).parent for source in ext.sources} | set(map(Path, ext.include_dirs))
        shared = [Path("setup.py"), *(header for f in folders for header in f.glob("*.h"))]
        oldest_allowed = max(file.stat().st_mtime for file in shared)

        def compile_source(source: str, output_dir: str, arguments: dict[str, Any]) -> list[str]:
            objects: list[str] = self.compiler.object_filenames([source], output_dir=output_dir)
            needed = max(oldest_allowed, Path(source).stat().st_mtime)
            if all(Path(name).exists() and Path(name).stat().st_mtime > needed for name in objects):
                return objects
            result: list[str] = compile_one([source], output_dir=output_dir, **arguments)
            return result

        def compile_all(sources: list[str], output_dir: str, **arguments: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                parts = pool.map(lambda s: compile_source(s, output_dir, arguments), sources)
                return [name for part in parts for name in part]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one


setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
