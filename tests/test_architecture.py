"""Dependencies point inwards, protocol code does no I/O, and importing stays cheap."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

# They read the source, which is the same in both builds.
pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "trivium": ROOT / "core/trivium",
    "trivium_mqtt": ROOT / "adapters/mqtt/trivium_mqtt",
    "trivium_amqp": ROOT / "adapters/amqp/trivium_amqp",
    "trivium_native": ROOT / "adapters/native/trivium_native",
    "trivium_spark": ROOT / "spark_bridge/trivium_spark",
}
#: package -> first names of modules of ours that it may import
ALLOWED = {
    "trivium": {"trivium"},
    "trivium_mqtt": {"trivium", "trivium_mqtt"},
    "trivium_amqp": {"trivium", "trivium_amqp"},
    "trivium_native": {"trivium", "trivium_native"},
    "trivium_spark": {"trivium", "trivium_native", "trivium_spark"},
}
#: The parts of a package, folders and modules, from the bottom to the top: each may import those
#: before it, also for types only.
ORDER = {
    "trivium": (
        "errors", "common", "storage", "host", "messages", "routing", "idempotence", "queues",
        "streams", "groups", "vhost", "listen", "security", "config", "observability", "runtime",
        "management", "cli", "embedded", "testing", "pytest_plugin", "logging", "__main__",
    ),
    "trivium.storage": (
        "errors", "figures", "base", "files", "journal", "segments", "contents", "catalog",
        "memory", "checkpoint", "opening", "disk", "repair",
    ),
}  # fmt: skip
#: folder of a package -> the other folders of it that it may import, also for types only
FOLDERS: dict[str, set[str]] = {
    "trivium_amqp.codec": set(),
    "trivium_mqtt.codec": set(),
    "trivium_native.client": {"trivium_native.wire"},
    "trivium_native.server": {"trivium_native.wire"},
    "trivium_native.wire": set(),
}
#: the only modules that know of the event loop: drivers and clients, no core, codec or protocol
LOOP_MODULES = {
    "trivium.runtime.driver",
    "trivium.runtime.fetching",
    "trivium.runtime.handshakes",
    "trivium.runtime.inside",
    "trivium.runtime.listeners",
    "trivium.runtime.server",
    "trivium.runtime.sockets",
    "trivium.runtime.tls",
    "trivium.runtime.unix_sockets",
    "trivium.runtime.proxy_protocol",
    "trivium.runtime.websocket",
    "trivium.observability.feeds",
    "trivium.observability.http",
    "trivium.observability.line",
    "trivium.common.loop_thread",
    "trivium.embedded",
    "trivium.logging",
    "trivium.cli.serve",
    "trivium.cli.service",
    "trivium.cli.doctor",
    "trivium.cli.bench",
    "trivium.cli.chaos",
    "trivium.cli.clients",
    "trivium.cli.control",
    "trivium.cli.loads",
    "trivium.cli.network",
    "trivium.cli.own_broker",
    "trivium.cli.reading",
    "trivium.cli.roads",
    "trivium_amqp.command",
    "trivium_mqtt.command",
    "trivium_native.client.background",
    "trivium_native.client.blocking",
    "trivium_native.client.client",
    "trivium_native.client.command",
    "trivium_native.client.consumer",
    "trivium_native.client.gate",
    "trivium_native.client.lasting",
    "trivium_native.client.load",
    "trivium_native.client.publisher",
    "trivium_native.client.connection",
    "trivium_native.client.receiving",
    "trivium_native.client.sync",
    "trivium_native.inside",
}
LOOP_IMPORTS = {"asyncio", "uvloop", "socket", "selectors", "aiohttp"}
#: test module -> private attributes of something else that it sets or reads
KNOWN_INSIDE = {
    # It breaks what is inside.
    "test_fail_stop.py": {"_close_storage", "_is_busy", "_transport"},
    # paho has no other way to say where its identifiers begin.
    "test_crash_mqtt.py": {"_last_mid"},
    # pika's blocking connection does not pass on what the server says of itself.
    "test_pika.py": {"_impl"},
}
#: test module -> how often it sleeps
SLEEPS = {
    # The moment of a kill is drawn; nothing is waited for.
    "kills.py": 1,
    "rounds.py": 1,
    # What a member works for.
    "member.py": 1,
    "test_crash_amqp.py": 1,
    # That time passes is what is tested, with brokers whose clocks are not ours.
    "test_across.py": 1,
    "test_paho_v5.py": 3,
    "test_pika.py": 1,
    "test_pika_extensions.py": 1,
    # pika's way of waiting for an event.
    "test_stop.py": 1,
}
#: What a reader can hold in mind at once: attributes and methods of a class, lines of a function.
MAX_ATTRIBUTES = 25
MAX_METHODS = 30
MAX_LINES = 60
#: full name of a class or function that is larger -> why it has to be
LARGE: dict[str, str] = {}
#: what `import trivium` and `trivium --help` must not pay for
HEAVY = {
    "aiohttp", "asyncio", "email", "http", "importlib.metadata", "logging", "msgpack", "numpy",
    "pandas", "pyarrow", "pyspark", "socket", "sqlite3", "ssl", "tomllib", "trivium.runtime.broker",
    "trivium.runtime.server", "urllib.request", "uvloop",
}  # fmt: skip


def modules() -> Iterator[tuple[str, str, Path]]:
    for package, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            yield package, ".".join(part for part in parts if part != "__init__"), file


def imports(file: Path) -> Iterator[str]:
    """The absolute names of all that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module in PACKAGES:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


MODULES = list(modules())


def test_every_package_is_looked_at() -> None:
    assert {package for package, _, _ in MODULES} == set(PACKAGES)


@pytest.mark.parametrize(("package", "module", "file"), MODULES, ids=[m for _, m, _ in MODULES])
def test_dependencies_point_inwards(package: str, module: str, file: Path) -> None:
    ours = {name.split(".")[0] for name in imports(file)} & set(PACKAGES)
    assert ours <= ALLOWED[package]


def parts_in(package: str, names: Iterable[str]) -> set[str]:
    """The parts of ``package`` that names of modules, or of what is in them, belong to."""
    start = f"{package}."
    return {name[len(start) :].split(".")[0] for name in names if name.startswith(start)}


@pytest.mark.parametrize(("module", "file"), [(m, f) for _, m, f in MODULES])
@pytest.mark.parametrize("package", list(ORDER))
def test_parts_import_lower_ones_only(package: str, module: str, file: Path) -> None:
    order = ORDER[package]
    for part in parts_in(package, [module]):
        # The package itself has its version.
        used = parts_in(package, imports(file)) - {"__version__"}
        assert used <= set(order[: order.index(part) + 1])


@pytest.mark.parametrize("package", list(ORDER))
def test_every_part_has_its_place(package: str) -> None:
    (top, *rest) = package.split(".")
    folder = PACKAGES[top].joinpath(*rest)
    parts = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert parts - {"__pycache__", "__init__"} == set(ORDER[package])


def test_the_core_asks_for_no_protocol_by_name() -> None:
    """What it must know of one, the protocol's codec tells (``PropertyCodec``)."""
    for package, module, file in MODULES:
        if package == "trivium" and module != "trivium.messages.message":
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"\bPROTOCOL_(MQTT|AMQP|NATIVE)\b", text), module


#: Names of protocols and of another broker, and words that are AMQP's or that broker's own.
PROTOCOL_WORDS = re.compile(
    r"amqp|mqtt|rabbit|native|spark|longstr|signedint|x-death", re.IGNORECASE
)
#: module of the core -> words that it has all the same
PROTOCOL_WORDS_LEFT = {
    # The numbers of the protocols are stored with messages.
    "trivium.messages.message": {"amqp", "mqtt", "native"},
    # The ports of the protocols that come with it: a configuration is made and checked, and
    # ``trivium --help`` printed, without the adapters.
    "trivium.config": {"amqp", "mqtt", "native"},
    "trivium.listen": {"mqtt"},
    # Help for who publishes and subscribes by a URL, and the options of those protocols.
    "trivium.cli": {"amqp", "mqtt", "native", "rabbit"},
    # Whose definitions are those that this broker has too.
    "trivium.cli.importing": {"rabbit"},
    # SubjectAlternativeName of X.509.
    "trivium.cli.certificates": {"native"},
    # The module ``trivium.common.native``.
    "trivium.runtime.websocket_frames": {"native"},
    # The API that tools for another broker know: its names, and what protocols are called there.
    "trivium.management.compatible.definitions": {"rabbit"},
    "trivium.management.compatible.general": {"amqp", "rabbit"},
    "trivium.management.compatible.health": {"amqp", "mqtt"},
    "trivium.management.compatible.password_hashes": {"rabbit"},
    "trivium.management.compatible.shown": {"amqp"},
    # The fixtures are called after the protocols of their URLs.
    "trivium.pytest_plugin": {"amqp", "mqtt", "native"},
    # Where tools for another broker look for the firehose.
    "trivium.vhost.predeclared": {"rabbit"},
    # The history of a dead letter is stored under this name, in this form.
    "trivium.queues.dead_letters": {"x-death"},
}


def words_of(text: str) -> Iterator[str]:
    """Identifiers and strings of a module, without its docstrings."""
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = {
        id(statement.value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body[:1]
        if isinstance(statement, ast.Expr)
    }
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str | bytes)
            and id(node) not in docstrings
        ):
            yield str(node.value)
        for field in ("id", "attr", "name", "asname", "arg", "module"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield word


def protocol_words(text: str) -> set[str]:
    return {found.lower() for word in words_of(text) for found in PROTOCOL_WORDS.findall(word)}


def test_the_core_names_no_protocol_but_where_it_is_said_why() -> None:
    found = {
        module: protocol_words(file.read_text(encoding="utf-8"))
        for package, module, file in MODULES
        if package == "trivium"
    }
    assert {module: words for module, words in found.items() if words} == PROTOCOL_WORDS_LEFT


def test_a_name_of_a_protocol_is_found() -> None:
    text = (
        '"""Of AMQP."""\nimport mqtt_a\n# Spark\n'
        'def native_b(c):\n    """As x-death."""\n    return f"a rabbit_{c}", b"longstr"\n'
    )
    assert protocol_words(text) == {"mqtt", "native", "rabbit", "longstr"}


@pytest.mark.parametrize("folder", list(FOLDERS))
def test_folders_of_adapters_have_a_direction(folder: str) -> None:
    package = folder.split(".")[0]
    inside = [(m, f) for _, m, f in MODULES if m == folder or m.startswith(f"{folder}.")]
    assert len(inside) > 1
    for module, file in inside:
        used = {f"{package}.{part}" for part in parts_in(package, imports(file))}
        assert used <= FOLDERS[folder] | {folder}, module


def test_every_folder_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {
        ".".join([package, *path.relative_to(folder).parent.parts])
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
    }
    assert set(settings["tool"]["setuptools"]["packages"]) == folders


@pytest.mark.parametrize("package", ORDER)
def test_the_document_has_the_folders_in_their_order(package: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| folder \|.*\n\| --- .*\n((?:\|.*\n)+)", text)
    folders = [tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for table in tables]
    assert ORDER[package] in folders


#: what the Spark bridge may use: the blocking client, what the client gives and takes, and the form
#: of messages
SPARK_USES = {
    "trivium.messages.delivery",
    "trivium.messages.message",
    "trivium.messages.neutral",
    "trivium.common.client_tls",
    "trivium.common.secrets",
    "trivium.streams.filtering",
    "trivium.streams.record_encoder",
    "trivium.streams.records",
    "trivium.messages.topics",
    "trivium_native.arrow",
    "trivium_native.errors",
    "trivium_native.requests",
    "trivium_native.sync",
    "trivium_native.transaction",
    "trivium_native.values",
    "trivium_native.wire.messages",
    "trivium_native.wire.properties",
}


@pytest.mark.parametrize("module", [m for _, m, _ in MODULES if m.startswith("trivium_spark")])
def test_spark_uses_the_native_client_only(module: str) -> None:
    (file,) = (file for _, name, file in MODULES if name == module)
    ours = {name for name in imports(file) if name.split(".")[0] in ("trivium", "trivium_native")}
    assert ours <= SPARK_USES


@pytest.mark.parametrize(("package", "module", "file"), MODULES, ids=[m for _, m, _ in MODULES])
def test_only_drivers_and_clients_know_the_loop(package: str, module: str, file: Path) -> None:
    found = {name.split(".")[0] for name in imports(file)} & LOOP_IMPORTS
    assert not found or module in LOOP_MODULES


TEST_FILES = sorted(
    file for folder in ("tests", "interop") for file in (ROOT / folder).rglob("*.py")
)
TEST_IDS = [str(file.relative_to(ROOT)) for file in TEST_FILES]


@pytest.mark.parametrize("file", TEST_FILES, ids=TEST_IDS)
def test_no_test_module_is_imported(file: Path) -> None:
    """What several of them need is in ``tests/support``, or in a module beside them."""
    parts = {
        part
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", ""), *(alias.name for alias in node.names))
        for part in name.split(".")
    }
    assert not [part for part in parts if part.startswith("test_")]


@pytest.mark.parametrize("file", TEST_FILES, ids=TEST_IDS)
def test_tests_wait_for_events(file: Path) -> None:
    """And do not sleep; ``asyncio.sleep(0)`` lets tasks begin, which takes no time."""
    found = sleeps(file.read_text(encoding="utf-8"))
    assert len(found) <= SLEEPS.get(file.name, 0), found


def sleeps(text: str) -> list[int]:
    """The lines of a module's text that sleep, by whatever name, or give that name away."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "sleep"
    }
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    harmless = {
        node.func
        for node in nodes
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == 0
    }
    return [
        node.lineno
        for node in nodes
        if node not in harmless
        and (
            (
                isinstance(node, ast.Attribute)
                and node.attr == "sleep"
                and (node in called or ast.unparse(node.value) in ("time", "asyncio"))
            )
            or (isinstance(node, ast.Name) and node.id in names)
        )
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("from time import sleep\nsleep(1)", [2]),
        ("from time import sleep as wait\nwait(0.1)", [2]),
        ("from asyncio import sleep\nawait sleep(0)\nawait sleep(1)", [3]),
        ("import time\nwait = time.sleep\nwait(1)", [2]),
        ("import asyncio\nawait asyncio.sleep(0)", []),
        ("import time\npatch(time, 'sleep', clock.sleep)", []),
        ("def sleep() -> None: ...\nsleep()", []),
    ],
)
def test_a_sleep_is_found(text: str, lines: list[int]) -> None:
    assert sleeps(text) == lines


@pytest.mark.parametrize("file", TEST_FILES, ids=TEST_IDS)
def test_private_attributes_are_for_their_own_module(file: Path) -> None:
    """A test that wants something to happen has a method for it (``Host.checkpoint``, say).

    And it sees what others see: what is private may change, and may be right while that is wrong.
    """
    assert private_of_others(file.read_text(encoding="utf-8")) == KNOWN_INSIDE.get(file.name, set())


def private_of_others(text: str) -> set[str]:
    """The private attributes in a module's text that no class and function of it has."""
    own: set[str] = set()
    of_others: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if is_own else of_others).add(node.attr)
    return of_others - own


def test_private_attributes_of_others_are_found() -> None:
    text = """
class Mine:
    def __init__(self, other):
        self._mine = other._read
        other._set = other.__class__
        del other.other._deleted
    def _method(self): ...
def look(mine): return mine._mine, mine._method()
"""
    assert private_of_others(text) == {"_read", "_set", "_deleted"}


def sizes(name: str, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Each class and function in ``body`` that is too large, by its full name, and its size."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            inside = f"{name}.{node.name}"
            attributes, methods = size_of_class(node)
            if attributes > MAX_ATTRIBUTES or methods > MAX_METHODS:
                yield inside, f"{attributes} attributes, {methods} methods"
            yield from sizes(inside, node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{name}.{node.name}"
            lines = int(node.end_lineno or 0) - node.lineno + 1
            if lines > MAX_LINES:
                yield inside, f"{lines} lines"
            yield from sizes(inside, node.body)
        else:
            for block in ("body", "handlers", "orelse", "finalbody"):
                yield from sizes(name, getattr(node, block, []))


def size_of_class(node: ast.ClassDef) -> tuple[int, int]:
    """How many attributes it sets or declares, and how many methods it has, its own alone."""
    attributes: set[str] = set()
    methods = 0
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            attributes.add(member.target.id)
        elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            methods += 1
            attributes.update(
                inner.attr
                for inner in ast.walk(member)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            )
    return len(attributes), methods


def test_classes_fit_a_mind_and_functions_a_screen() -> None:
    large: dict[str, str] = {}
    for _, module, file in MODULES:
        large.update(sizes(module, ast.parse(file.read_text(encoding="utf-8")).body))
    assert {name: size for name, size in large.items() if name not in LARGE} == {}
    assert set(LARGE) <= set(large)


def test_what_is_too_large_is_found() -> None:
    attributes = "\n".join(f"        self.a{each} = 0" for each in range(MAX_ATTRIBUTES + 1))
    methods = "\n".join(f"    def m{each}(self): ..." for each in range(MAX_METHODS + 1))
    lines = "\n".join(f"            b{each} = 0" for each in range(MAX_LINES))
    text = (
        f"class A:\n    def __init__(self):\n{attributes}\n"
        f"class B:\n{methods}\n"
        f"if True:\n    class C:\n        def long(self):\n{lines}\n"
    )
    assert dict(sizes("m", ast.parse(text).body)) == {
        "m.A": f"{MAX_ATTRIBUTES + 1} attributes, 1 methods",
        "m.B": f"0 attributes, {MAX_METHODS + 1} methods",
        "m.C.long": f"{MAX_LINES + 1} lines",
    }


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running the code."""
    script = f"import sys\n{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(result.stderr.split())


def test_import_trivium_is_cheap() -> None:
    # What the interpreter itself and editable installs load is not our doing.
    before = loaded_after("")
    assert not (loaded_after("import trivium") - before) & HEAVY


def test_help_is_cheap() -> None:
    help_command = "from trivium.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    before = loaded_after("import argparse")
    assert not (loaded_after(help_command) - before) & HEAVY


@pytest.mark.parametrize("client", ["trivium_native.client", "trivium_native.sync"])
def test_a_client_does_not_load_the_broker(client: str) -> None:
    loaded = loaded_after(f"import {client}")
    assert not loaded & {
        "trivium.runtime.broker",
        "trivium.queues.queue",
        "trivium.runtime.server",
        "trivium.vhost.virtual_host",
    }


def test_who_makes_requests_and_blocks_needs_no_event_loop() -> None:
    assert "asyncio" not in loaded_after("import trivium_native.sync")


def test_without_http_its_framework_is_not_imported() -> None:
    serve = """
import asyncio
from trivium import Broker, Config
from trivium.config import StorageConfig
async def main():
    async with Broker(Config(listen={}, storage=StorageConfig(mode="memory"))):
        pass
asyncio.run(main())
"""
    loaded = loaded_after(serve)
    assert "trivium.runtime.server" in loaded
    assert "aiohttp" not in loaded
    assert "trivium.observability.http" not in loaded


#: What a broker in memory has no need of, whatever its protocols: each is loaded where it is
#: configured.
UNCONFIGURED = {
    "aiohttp", "argon2", "bcrypt", "cryptography", "jwt", "logging.handlers", "multiprocessing",
    "numpy", "opentelemetry", "pandas", "pickle", "pyarrow", "sqlite3", "tomllib",
    "trivium.cli", "trivium.management", "trivium.observability.api",
    "trivium.observability.audit", "trivium.observability.browsers", "trivium.observability.http",
    "trivium.observability.span_exporter", "trivium.runtime.exposition", "trivium.runtime.fetching",
    "trivium.runtime.websocket", "trivium.security.http_authenticator", "trivium.security.tokens",
    "trivium.security.web", "trivium.storage.disk", "urllib.request",
}  # fmt: skip


@pytest.mark.parametrize(
    "start",
    [
        "from trivium.testing import SharedBroker as start",
        "from trivium.embedded import start",
    ],
)
def test_a_broker_for_tests_loads_what_it_needs(start: str) -> None:
    """As the fixtures of pytest have it, and a program that blocks."""
    serve = f"""
{start}
from trivium.config import Config, Listen, StorageConfig
listen = dict.fromkeys(("mqtt", "amqp", "native"), Listen(0))
with start(Config(listen=listen, storage=StorageConfig(mode="memory"))) as broker:
    assert len(broker.listeners) == 3
"""
    loaded = loaded_after(serve)
    assert {"trivium_mqtt", "trivium_amqp", "trivium_native"} <= loaded
    assert sorted((loaded - loaded_after("")) & UNCONFIGURED) == []
