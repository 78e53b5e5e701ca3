"""Compile the modules listed under `[tool.trivium]` in pyproject.toml with mypyc.

`TRIVIUM_PURE=1` builds without compiling; so does a machine without a C compiler, saying so in one
line. The packages run the same either way, only slower.
"""

import os
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.sysconfig import customize_compiler

#: the commands that compile; the others, which only ask for metadata, must be quick and quiet
BUILD_COMMANDS = {"bdist_wheel", "build", "build_ext", "editable_wheel", "install"}
CONFIG = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]


def source_file(module: str) -> str:
    package, _, rest = module.partition(".")
    return f"{CONFIG['setuptools']['package-dir'][package]}/{rest.replace('.', '/')}.py"


def can_compile() -> bool:
    """Whether a C file that includes Python.h compiles here."""
    import sysconfig

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
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--no-warn-unused-ignores"]
    return mypycify([*options, *files], opt_level="3", debug_level="0", group_name="trivium")


setup(ext_modules=extensions())
