"""Documents, docstrings and comments name what is there, and their lines are short."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

# They read the source, which is the same in both builds.
pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[1]
SOURCES = (
    "core", "adapters/mqtt", "adapters/amqp", "adapters/native", "spark_bridge",
)  # fmt: skip
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
#: what is read beside the product
TOOLS = sorted(
    file for folder in ("bench", "interop", "tests") for file in (ROOT / folder).rglob("*.py")
)
PRODUCT = sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))
MAX_LINE = 120
#: of a paragraph, and of an item of a list
MAX_PARAGRAPH_WORDS = 100
MAX_ITEM_WORDS = 80
#: the folders of the repository that paths may begin with
FOLDERS = (
    "core", "adapters", "spark_bridge", "tests", "interop", "bench", "examples", "docs",
)  # fmt: skip
#: what a command makes when it is called
MADE = {"bench/results"}
#: classes of others that the documents name
FOREIGN = {"Struct", "Trigger"}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


# What there is


def module_names() -> Iterator[tuple[str, Path]]:
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), file


MODULES = dict(module_names())
PACKAGES = {name.split(".")[0] for name in MODULES}


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """The trees are millions of objects, which would be walked by each collection from then on."""
    yield
    for cached in (tree, members, classes):
        cached.cache_clear()


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def targets(node: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        yield node.target


@cache
def members(module: str) -> dict[str, ast.AST]:
    """What a module defines or imports at its top, by name."""
    found: dict[str, ast.AST] = {}
    statements = list(tree(MODULES[module]).body)
    for node in statements:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.If | ast.Try):
            statements += node.body + node.orelse
        else:
            found |= {t.id: node for t in targets(node) if isinstance(t, ast.Name)}
    return found


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """All classes of the product by their names."""
    found: dict[str, list[ast.ClassDef]] = {}
    for file in MODULES.values():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class, or one that it is derived from, has."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(part.name)
        elif isinstance(part, ast.stmt):
            for target in targets(part):
                if isinstance(target, ast.Name):
                    found.add(target.id)
                elif isinstance(target, ast.Attribute):
                    found.add(target.attr)
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
        for parent in classes().get(name, []):
            if parent is not node:
                found |= attributes(parent)
    return found


def is_there(reference: str) -> bool:
    """Whether ``package.module.name.attribute``, or a part of it from the left, exists."""
    parts = reference.split(".")
    at = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES)
    module, names = ".".join(parts[:at]), parts[at:]
    if not names:
        return True
    node = members(module).get(names[0])
    if isinstance(node, ast.ClassDef):
        return len(names) == 1 or names[1] in attributes(node)
    return node is not None and len(names) == 1


# What is written


def docstrings(file: Path) -> list[str]:
    return [
        text
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node))
    ]


def prose(file: Path) -> str:
    """A document, or the docstrings and comments of a module."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(docstrings(file) + comments)


def wrong_modules(text: str) -> list[str]:
    """References that begin with one of our packages."""
    names = "|".join(sorted(PACKAGES, key=len, reverse=True))
    return [
        found
        for found in re.findall(rf"(?<![\w./:@-])((?:{names})(?:\.\w+)+)(?![\w/])", text)
        if found.split(".")[1]
        not in (
            "io",
            "toml",
            "adapters",
            "clients",
            "options",
            "imports",
            "inside",
            "remote",
            "readers",
        )
        if not is_there(found)
    ]


def wrong_names(text: str, package: str = "") -> list[str]:
    """``Class.attribute`` in backquotes, of classes that are ours or nobody's."""
    wrong: list[str] = []
    for name, attribute in re.findall(r"`([A-Z]\w*[a-z]\w*)\.([a-z_]\w*)(?:\([^`]*\))?`", text):
        if name in FOREIGN:
            continue
        known = classes().get(name, [])
        if not any(attribute in attributes(node) for node in known):
            wrong.append(f"{name}.{attribute}")
    return wrong


def wrong_members(text: str, file: Path) -> list[str]:
    """``module.name`` in the backquotes of a module, of the modules of its package."""
    package = next((name.split(".")[0] for name, path in MODULES.items() if path == file), "")
    named: dict[str, list[str]] = {}
    for key in MODULES:
        if key.startswith(f"{package}."):
            named.setdefault(key.split(".")[-1], []).append(key)
    return [
        f"{module}.{name}"
        for module, name in re.findall(r"``([a-z]\w*)\.([A-Za-z_]\w*)(?:\([^`]*\))?`", text)
        if module in named and not any(name in members(key) for key in named[module])
    ]


def wrong_paths(text: str) -> list[str]:
    """Paths, from the top of the repository, of what is not there; ends that no path has."""
    paths = re.findall(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./-]*\w)", text)
    ends = re.findall(r"`([\w./-]+\.(?:py|md|toml|mjs))`", text)
    return [path for path in paths if path not in MADE and not (ROOT / path).exists()] + [
        end
        for end in ends
        if end not in paths and not any(f"/{path}".endswith(f"/{end}") for path in file_paths())
    ]


@cache
def file_paths() -> set[str]:
    files = [*ROOT.glob("*.*"), *(f for folder in FOLDERS for f in (ROOT / folder).rglob("*.*"))]
    return {str(file.relative_to(ROOT)) for file in files}


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {slug(heading) for heading in headings}


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_lines_of_documents_are_short(file: Path) -> None:
    """Rows of tables too, so that their cells are short."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    assert [(number, len(line)) for number, line in lines if len(line) > MAX_LINE] == []


def blocks(text: str) -> Iterator[tuple[str, int]]:
    """Paragraphs and list items of a document: how each begins, and its words."""
    block: list[str] = []
    for line in [*re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines(), ""]:
        begins_item = re.match(r"\s*(?:-|\d+\.) ", line)
        if begins_item or not line.strip() or line.startswith(("|", "#")):
            if block:
                yield block[0], len(" ".join(block).split())
            block = []
        if line.strip() and not line.startswith(("|", "#")):
            block.append(line)


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_paragraphs_and_list_items_say_one_thing(file: Path) -> None:
    found = blocks(file.read_text(encoding="utf-8"))
    assert [
        (begin, words)
        for begin, words in found
        if words > (MAX_ITEM_WORDS if re.match(r"\s*(?:-|\d+\.) ", begin) else MAX_PARAGRAPH_WORDS)
    ] == []


@pytest.mark.parametrize("file", DOCUMENTS + PRODUCT, ids=name_of)
def test_what_is_named_is_there(file: Path) -> None:
    text = prose(file)
    wrong = wrong_modules(text) + wrong_names(text) + wrong_paths(text)
    assert wrong + wrong_members(text, file) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`trivium.queues.queue` has Queue", []),
        ("`trivium.queues.line`", ["trivium.queues.line"]),
        ("`trivium.queues.queue.Queue.put`", []),
        ("as trivium.queues.queue.Queue.puts does", ["trivium.queues.queue.Queue.puts"]),
        ("``Queue.put``, ``Log.append``, ``AmqpConnection.held_for``", []),
        ("``Queue.puts``, ``Line.put``", ["Queue.puts", "Line.put"]),
        ("core/trivium/host.py, `docs/mqtt.md`", []),
        ("core/trivium/hosts.py", ["core/trivium/hosts.py"]),
        ("`host.py`", []),
        ("`hosts.py`", ["hosts.py"]),
        ("`queues/queue.py` there", []),
        ("`queue/queue.py` there", ["queue/queue.py"]),
        ("``namespace.QueueNamespace``", []),
        ("``namespace.QueueNamespaces``", ["namespace.QueueNamespaces"]),
    ],
)
def test_a_wrong_reference_is_found(text: str, wrong: list[str]) -> None:
    file = ROOT / "core/trivium/queues/queue.py"
    found = wrong_modules(text) + wrong_names(text) + wrong_paths(text)
    assert found + wrong_members(text, file) == wrong


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(file: Path) -> None:
    wrong: list[str] = []
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = file.parent / path if path else file
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("file", PRODUCT + TOOLS, ids=name_of)
def test_a_docstring_says_something_itself(file: Path) -> None:
    """An override has one only where there is more to say than its base class says."""
    assert [text for text in docstrings(file) if text.startswith(("See `", "See the "))] == []


def test_who_looks_for_a_change_finds_commands_and_operations_of_the_client() -> None:
    """They are in files of their own, which nobody would guess from the others."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Where do I change") : text.index("## Words")]
    files = [
        *(ROOT / "core/trivium/cli").glob("*.py"),
        *(ROOT / "adapters/native/trivium_native/client").glob("*operations.py"),
    ]
    assert [name for file in files if f"`{(name := name_of(file))}`" not in table] == []


def test_a_word_means_one_thing() -> None:
    """The glossary has one row for each, in the order of the alphabet."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", text[text.index("## Words") :], re.MULTILINE)
    words = rows[2:]
    assert len(words) > 50
    assert words == sorted(set(words), key=str.lower)
