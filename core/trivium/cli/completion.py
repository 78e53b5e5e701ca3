"""`trivium completion`: what a shell completes, made of all commands and verbs.

Names of queues and so on are asked of the broker that the line so far says, which must answer at
once: whoever presses a key does not want to wait.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from typing import Any, Final

from trivium.cli import EXIT_OK, NOUNS, make_parser
from trivium.cli.clients import ClientError, UsageError
from trivium.cli.control import find_api
from trivium.management.segments import segment

#: Time until the broker has answered: what it has told by then is completed.
SECONDS: Final = 1.0
#: Names that are completed, and items of a list that are asked for at once.
MOST: Final = 100
PAGE_SIZE: Final = 500
NAMES: Final = "names"

#: Where the names of what an argument or option is for are: the list, and its field.
KINDS: Final = {
    "connection": ("connections", "name"),
    "exchange": ("vhosts/{vhost}/exchanges", "name"),
    "group": ("vhosts/{vhost}/groups", "name"),
    "key": ("keys", "id"),
    "node": ("nodes", "name"),
    "policy": ("vhosts/{vhost}/policies", "name"),
    "queue": ("vhosts/{vhost}/queues", "name"),
    "role": ("roles", "name"),
    "session": ("vhosts/{vhost}/sessions", "client_id"),
    "stream": ("vhosts/{vhost}/streams", "name"),
    "user": ("users", "name"),
    "vhost": ("vhosts", "name"),
}
#: Of arguments and options that are not called as what they are for.
_CALLED: Final = {
    "path_client_id": "session",
    "body_source": "exchange",
    "body_destination": "queue",
    "body_streams": "stream",
    "body_roles": "role",
    "body_virtual_host": "vhost",
    "query_source": "exchange",
    "query_destination": "queue",
    "vhost": "vhost",
}

#: What is a file or directory, and what shtab has for it.
_PATHS: Final = {"FILE": "FILE", "NEW": "FILE", "DIR": "DIRECTORY"}

#: The words of a command, its parser, and its arguments and options.
Command = tuple[tuple[str, ...], argparse.ArgumentParser, list[argparse.Action]]

_BASH: Final = """\
_trivium_names() {
  local kind="$1" word="$2" place=() at line
  for ((at = 1; at < COMP_CWORD; at++)); do
    case "${COMP_WORDS[at]}" in
      --data | --config | --url | --vhost)
        ((at + 1 == COMP_CWORD)) || place+=("${COMP_WORDS[at]}" "${COMP_WORDS[at + 1]}") ;;
    esac
  done
  while IFS= read -r line; do
    printf '%q\\n' "$line"
  done < <("${COMP_WORDS[0]}" completion names "$kind" --prefix "$word" "${place[@]}" 2>/dev/null)
}
"""
_ZSH: Final = """\
_trivium_names() {
  local kind="$1" place=() at
  for ((at = 2; at < CURRENT; at++)); do
    case "${words[at]}" in
      --data | --config | --url | --vhost) place+=("${words[at]}" "${(Q)words[at + 1]}") ;;
    esac
  done
  place+=(--prefix "${(Q)PREFIX}")
  local found=("${(@f)$(trivium completion names "$kind" "${place[@]}" 2>/dev/null)}")
  compadd -- "${found[@]:#}"
}
"""


def run(options: argparse.Namespace) -> int:
    """Print the script for a shell, or names for it; the exit code."""
    if options.shell == NAMES:
        for name in _names(options):
            print(name)
        return EXIT_OK
    import shtab

    parser = make_parser(NOUNS)
    known = _known()
    for words, _, actions in commands_of(parser):
        for action in actions:
            action.choices = action.choices or known.get((words, action.dest))
            kind = _PATHS.get(str(action.metavar))
            if kind is not None:
                action.complete = getattr(shtab, kind)  # type: ignore[attr-defined]
        _mark(actions)
    functions = {"bash": _BASH, "zsh": _ZSH}
    for shell in functions:
        for kind in KINDS:
            functions[shell] += f'{_function(kind)}() {{ _trivium_names {kind} "$1"; }}\n'
    print(shtab.complete(parser, shell=options.shell, preamble=functions))  # type: ignore[arg-type]
    return EXIT_OK


def _known() -> dict[tuple[tuple[str, ...], str], list[str]]:
    """Words of commands that their parsers do not know, since to find them costs a moment."""
    from trivium.cli.bench import roads
    from trivium.cli.chaos import EXPERIMENTS
    from trivium.cli.importing import sources

    return {
        (("import",), "source"): sources(),
        (("chaos",), "experiments"): list(EXPERIMENTS),
        (("chaos",), "protocols"): sorted(roads()),
    }


def _function(kind: str) -> str:
    return f"_trivium_names_{kind}"


def commands_of(parser: argparse.ArgumentParser, *words: str) -> Iterator[Command]:
    """Each command of a parser, by whichever of its names."""
    inner = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not inner:
        yield words, parser, list(parser._actions)
    for action in inner:
        for name, found in action.choices.items():
            yield from commands_of(found, *words, name)


def _mark(actions: list[argparse.Action]) -> None:
    """Say of each argument and option whose names it takes."""
    for action in actions:
        kind = kind_of(action.dest)
        if kind is not None and not action.choices:
            function = _function(kind)
            action.complete = {"bash": function, "zsh": function}  # type: ignore[attr-defined]


def kind_of(name: str) -> str | None:
    """Whose names an argument or option takes; None for a text."""
    found = _CALLED.get(name, name.removeprefix("path_"))
    return found if found in KINDS and (name in _CALLED or name.startswith("path_")) else None


def _names(options: argparse.Namespace) -> Iterator[str]:
    """Names that begin with the word so far; none where the broker does not answer at once."""
    if options.kind not in KINDS:
        return
    found: list[str] = []
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        for name in _listed(options):
            # What is no text of one line cannot stand on a line of a shell.
            if name.startswith(options.prefix) and name.isprintable():
                found.append(name)
            if len(found) >= MOST:
                break
    except (ClientError, UsageError, TimeoutError):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    yield from found


def _listed(options: argparse.Namespace) -> Iterator[str]:
    """All names that have the word in them, wherever: pages of them, one after another."""
    path, field = KINDS[options.kind]
    path = path.format(vhost=segment(options.vhost or "/"))
    api = find_api(options)
    page, last = 1, 1
    while page <= last:
        query = {"page": str(page), "page_size": str(PAGE_SIZE), "name": options.prefix[:128]}
        answer: dict[str, Any] = api.ask("GET", path, query)
        yield from (str(item[field]) for item in answer["items"])
        page, last = page + 1, answer["page_count"]


def _give_up(number: int, frame: object) -> None:
    raise TimeoutError
