"""The command `trivium`.

Only the arguments are handled here, so that `trivium --help` imports nothing heavy; each command's
module is imported when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Final, NoReturn

from trivium import __version__
from trivium.cli.server_options import CONTROL_EPILOG, TLS_EPILOG, add_control, add_server

EXIT_OK: Final = 0
#: the command failed while running: an address in use, a connection refused or lost
EXIT_FAILED: Final = 1
#: wrong arguments or configuration
EXIT_USAGE: Final = 2
#: another broker uses the data directory
EXIT_LOCKED: Final = 3
#: the data directory is damaged beyond a torn end, or of a version that this one cannot read
EXIT_DAMAGED: Final = 4
#: the disk failed, is full or cannot be used (EX_IOERR of sysexits.h), or the broker met an error
#: of its own: it stops in the same way, and starts as after a crash
EXIT_IO: Final = 74

_EXIT_CODES: Final = f"""\
exit codes:
  {EXIT_OK}  stopped as asked
  {EXIT_FAILED}  failed while running (address in use, connection refused or lost)
  {EXIT_USAGE}  wrong arguments or configuration
  {EXIT_LOCKED}  another broker uses the data directory
  {EXIT_DAMAGED}  the data directory is damaged, or of an unknown version
  {EXIT_IO} the disk failed, is full or cannot be used, or an internal error; what was
     acknowledged is kept
"""

_SERVE_EPILOG: Final = f"""\
ADDRESS is [HOST:]PORT or "off". The host is 127.0.0.1 when left out; IPv6 hosts stand in brackets;
"localhost" listens on 127.0.0.1 and ::1. Port 0 takes any free port. Once connections are accepted,
one line on standard output says where.

Each key of the file is overridden by an environment variable TRIVIUM_SECTION__KEY (for example
TRIVIUM_STORAGE__FSYNC=interval:100), and that by the options above.

{_EXIT_CODES}"""

_DOCTOR_EPILOG: Final = f"""\
It takes the options of `trivium serve`, and reads the same file and environment. It looks at
limits, memory, the clock, the file system of the data directory and how it syncs, addresses and
certificates. A broker may run meanwhile. Errors are what would keep it from starting, or from
keeping its promises.

exit codes:
  {EXIT_OK}  no errors
  {EXIT_FAILED}  errors
  {EXIT_USAGE}  wrong arguments or configuration
"""

_URL_HELP: Final = f"""\
URL is mqtt://, amqp:// or trivium:// followed by [USER:PASSWORD@]HOST[:PORT]; an amqp URL may end
in /VHOST. mqtt and amqp need the extra: pip install 'trivium[cli]'.
{TLS_EPILOG}"""

_PUB_EPILOG: Final = f"""\
{_URL_HELP}
ADDRESS is an MQTT topic, an AMQP routing key (see --exchange) or a native address. Without a
PAYLOAD each line of standard input is one message. The command ends once all are acknowledged.

{_EXIT_CODES}"""

_SUB_EPILOG: Final = f"""\
{_URL_HELP}
ADDRESS is an MQTT topic filter, an AMQP binding key (see --exchange) or a native pattern; with
--queue a queue's name, with --from a stream's. Each payload is written to standard output with a
newline.

{_EXIT_CODES}"""


_BENCH_EPILOG: Final = f"""\
URL is mqtt://, amqp:// or trivium:// followed by [USER:PASSWORD@]HOST[:PORT]; the last two may end
in /VHOST. It may be any broker's. A word of those alone is a broker of its own, in a directory for
temporary files, and nothing is each of the three in turn.
{TLS_EPILOG}
mqtt publishes to topics of which each consumer gets every message; amqp and trivium publish to a
queue that the consumers share. Of a stream each consumer of amqp gets every message. With --rate
delays count from when a message was due. Interrupt it once for the results so far, twice to wait
for nothing.

exit codes:
  {EXIT_OK}  nothing was lost (at QoS 0 it may be), nothing came twice
  {EXIT_FAILED}  something was, or the connection failed
  {EXIT_USAGE}  wrong arguments
"""

_CHAOS_EPILOG: Final = f"""\
EXPERIMENT is kill (SIGKILL and a new start), pause (SIGSTOP), full (no file can become longer, as
on a full disk) or network (reset, silent, slow or narrow connections); all four without one. The
broker is a child process on loopback, in a directory for temporary files. Meanwhile messages are
published with confirms: whatever was acknowledged must come, what comes again must say so, and at
QoS 2 of mqtt nothing may.

exit codes:
  {EXIT_OK}  all promises were kept
  {EXIT_FAILED}  one was broken, or the broker does not start
  {EXIT_USAGE}  wrong arguments
"""

_CHECK_EPILOG: Final = f"""\
The broker must not run. Every checksum is verified and every message decoded; nothing is changed.
One line for each log (the messages of a queue, a partition of a stream) says what it holds, then
one for each damage, and for each range of offsets that is lost by it.

exit codes:
  {EXIT_OK}  in order
  {EXIT_FAILED}  damaged, or not readable
  {EXIT_USAGE}  wrong arguments
  {EXIT_LOCKED}  a broker uses the data directory
  {EXIT_DAMAGED}  of an unknown version
"""

_REPAIR_EPILOG: Final = f"""\
The broker must not run. Damaged files are copied to DIR/quarantine-TIME with a report, what can be
saved is written anew, and the lines say what is lost. It may be interrupted and run again. A
directory in order is left as it is.

exit codes:
  {EXIT_OK}  in order now
  {EXIT_FAILED}  not readable or writable
  {EXIT_USAGE}  wrong arguments
  {EXIT_LOCKED}  a broker uses the data directory
  {EXIT_DAMAGED}  of an unknown version
"""

_TLS_EPILOG: Final = f"""\
self-signed makes ca.pem and ca.key, server.pem and server.key, client.pem and client.key in DIR,
none of which may be there. It needs the extra: pip install 'trivium[encryption]'.

{_EXIT_CODES}"""


_IMPORT_EPILOG: Final = f"""\
BROKER is mosquitto or rabbitmq. Of FILE, a mosquitto.conf, a configuration for `trivium serve
--config` is made; password and ACL files are read as they are. FILE of rabbitmq has definitions, as
`rabbitmqctl export_definitions` writes them ("-" is standard input): they go into a running broker.
Lines on standard error name what has no counterpart, and what cannot be.

{CONTROL_EPILOG}
{_EXIT_CODES}"""

_DEFINITIONS_EPILOG: Final = f"""\
FILE is a JSON document of virtual hosts, users with the hashes of their passwords, permissions,
policies, queues, exchanges and bindings, as RabbitMQ has it. An import changes nothing that is
there: it must be the same. The first thing that cannot be ends it; what came before it stays.

{CONTROL_EPILOG}
{_EXIT_CODES}"""


#: What is managed by verbs; `trivium.cli.verbs` has these.
NOUNS: Final = {
    "queue": "Queues: list, show, create, purge and delete them.",
    "stream": "Streams, and their partitions.",
    "exchange": "Exchanges.",
    "binding": "Bindings of exchanges to queues, streams and exchanges.",
    "group": "Consumer groups: their members, lag and offsets.",
    "connection": "Connections: list, show and close them.",
    "channel": "Channels of connections.",
    "consumer": "Consumers of queues and streams.",
    "session": "MQTT sessions, and their subscriptions.",
    "trace": "The firehose of a virtual host: all its messages, on an exchange.",
    "retained": "Retained messages.",
    "vhost": "Virtual hosts, and how much each may have.",
    "cluster": "Nodes of the cluster: one, by itself.",
    "user": "Users, their passwords, tags, limits and API keys.",
    "permission": "What users may do in virtual hosts.",
    "topic-permission": "What users may do with the routing keys of an exchange.",
    "role": "Roles, and who has them.",
    "policy": "Policies: settings for all whose name matches a pattern.",
    "operator-policy": "Policies of operators: limits that no other policy exceeds.",
}

_SHELL_EPILOG: Final = """\
For bash, in ~/.bashrc: eval "$(trivium completion bash)". For zsh, in a directory of $fpath:
trivium completion zsh >_trivium. It needs the extra: pip install 'trivium[cli]'.
"""

_VERBS_EPILOG: Final = f"""\
{CONTROL_EPILOG}
exit codes:
  {EXIT_OK}  done
  {EXIT_FAILED}  refused by the broker, or it cannot be reached
  {EXIT_USAGE}  wrong arguments, or not confirmed
"""


_OWN_MODULES: Final = (
    *("serve", "doctor", "bench", "chaos", "status", "top", "completion", "definitions"),
)
#: The module that runs a command.
_MODULES: Final = {
    **{name: name for name in _OWN_MODULES},
    **dict.fromkeys(("check", "repair"), "data_directory"),
    **dict.fromkeys(("pub", "sub"), "clients"),
    **dict.fromkeys(NOUNS, "verbs"),
    "tls": "certificates",
    "import": "importing",
    "hash-password": "passwords",
}
#: What some need: a package and the extra that brings it.
_NEEDS: Final = {
    "tls": ("cryptography", "encryption"),
    "completion": ("shtab", "cli"),
    "top": ("rich", "cli"),
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def make_parser(nouns: Iterable[str]) -> argparse.ArgumentParser:
    """All commands; the verbs only of some nouns, since to know them costs a moment."""
    parser = _Parser(
        prog="trivium",
        description="A message broker: MQTT, AMQP 0-9-1 and native clients over one durable core.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def add(name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    serve = add("serve", "Run the broker until SIGTERM or SIGINT.", _SERVE_EPILOG)
    _add_serve(serve)
    _add_json(serve, "where it listens as one JSON object")
    doctor = add(
        "doctor",
        "Look whether this machine is fit for the broker, and say what to do.",
        _DOCTOR_EPILOG,
    )
    _add_serve(doctor)
    _add_json(doctor, "one JSON object per line")
    _add_pub(add("pub", "Publish messages.", _PUB_EPILOG))
    _add_sub(add("sub", "Print messages until interrupted.", _SUB_EPILOG))
    _add_bench(add("bench", "Load a broker, and measure rates and delays.", _BENCH_EPILOG))
    _add_chaos(add("chaos", "Disturb a broker of its own, and verify its promises.", _CHAOS_EPILOG))
    for noun, summary in NOUNS.items():
        _add_noun(add(noun, summary, _VERBS_EPILOG), noun, noun in nouns)
    _add_directory(add("check", "Verify the data directory of a stopped broker.", _CHECK_EPILOG))
    _add_directory(add("repair", "Make a damaged data directory usable again.", _REPAIR_EPILOG))
    _add_definitions(
        add("definitions", "Export and import what was declared and granted.", _DEFINITIONS_EPILOG)
    )
    _add_import(add("import", "Take over what another broker has.", _IMPORT_EPILOG))
    _add_tls(add("tls", "Make certificates to try TLS with.", _TLS_EPILOG))
    _add_status(add("status", "Say how a running broker is, in one screen.", _VERBS_EPILOG))
    top = add("top", "Watch a running broker, until q is pressed.", _VERBS_EPILOG)
    _add_json(top, "one JSON object each second, also where there is no terminal")
    add_control(top)
    completion = add("completion", "Print what a shell needs to complete commands.", _SHELL_EPILOG)
    _add_completion(completion)
    hashing = add(
        "hash-password", "Read a password from standard input and print its hash for [users].", ""
    )
    hashing.add_argument(
        "--scram", action="store_true", help="print its keys for SCRAM, the value of `scram`"
    )
    _add_json(hashing, "one JSON object")
    hashing.add_argument(
        "--iterations", type=int, metavar="N", help="of the keys (default: 600000)"
    )
    return parser


def _add_completion(completion: argparse.ArgumentParser) -> None:
    completion.add_argument("shell", choices=("bash", "zsh", "names"))
    completion.add_argument("kind", metavar="KIND", nargs="?", help="names: of what")
    completion.add_argument("--prefix", default="", metavar="TEXT", help="names: as they begin")
    completion.add_argument("--vhost", metavar="NAME", help="names: default: /")
    add_control(completion)


def _add_status(status: argparse.ArgumentParser) -> None:
    _add_json(status, "one JSON object")
    add_control(status)


def _add_noun(command: argparse.ArgumentParser, noun: str, has_verbs: bool) -> None:
    if has_verbs:
        from trivium.cli.verbs import add_verbs

        add_verbs(noun, command)


def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--config", type=_not_empty, metavar="FILE", help="TOML configuration file")
    place = serve.add_mutually_exclusive_group()
    place.add_argument(
        "--data",
        type=_not_empty,
        metavar="DIR",
        help="data directory (default: ./trivium-data)",
    )
    place.add_argument("--memory", action="store_true", help="keep everything in memory only")
    for protocol, port in (("mqtt", 1883), ("amqp", 5672), ("native", 7650), ("http", 15672)):
        serve.add_argument(
            f"--{protocol}",
            type=_address,
            metavar="ADDRESS",
            help=f"default: 127.0.0.1:{port}; or off",
        )
    for name, what in (
        ("mqtts", "MQTT with TLS"),
        ("amqps", "AMQP with TLS"),
        ("natives", "native with TLS"),
        ("https", "HTTP with TLS"),
        ("ws", "MQTT by WebSocket, path /mqtt"),
        ("wss", "the same with TLS"),
    ):
        serve.add_argument(
            f"--{name}", type=_address, metavar="ADDRESS", help=f"{what}; off by default"
        )
    for key, what in (
        ("certificate", "certificate and those above it, PEM; for the listeners with TLS"),
        ("key", "its private key, PEM"),
        ("ca", "authorities of the clients' certificates, PEM; clients may show one"),
    ):
        serve.add_argument(f"--tls-{key}", type=_not_empty, metavar="FILE", help=what)


def _add_pub(pub: argparse.ArgumentParser) -> None:
    add_server(pub)
    pub.add_argument("address", metavar="ADDRESS")
    pub.add_argument("payload", metavar="PAYLOAD", nargs="?")
    pub.add_argument(
        "--retain", action="store_true", help="mqtt, trivium: keep for later subscribers"
    )
    _add_way(pub)


def _add_sub(sub: argparse.ArgumentParser) -> None:
    add_server(sub)
    sub.add_argument("address", metavar="ADDRESS")
    sub.add_argument("--count", type=_positive, metavar="N", help="stop after N messages")
    sub.add_argument("--queue", action="store_true", help="amqp, trivium: consume a queue")
    sub.add_argument(
        "--from",
        dest="offset",
        metavar="OFFSET",
        help="trivium: read all partitions of a stream from an offset, or from first or next",
    )
    sub.add_argument(
        "--filter",
        dest="topic_filter",
        metavar="FILTER",
        help="trivium: with --from only topics that match, such as sensors/+/temperature",
    )
    sub.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="put the address before each payload; say on standard error when subscribed",
    )
    _add_way(sub)


def _add_bench(bench: argparse.ArgumentParser) -> None:
    add_server(bench, is_optional=True)
    bench.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="default: 1")
    bench.add_argument(
        "--transient", action="store_true", help="amqp, trivium: confirmed, but kept in memory only"
    )
    bench.add_argument(
        "--stream", action="store_true", help="amqp, trivium: a stream; trivium reads it as a group"
    )
    bench.add_argument(
        "--transaction",
        type=_positive,
        metavar="N",
        help="amqp, trivium: publish in transactions of N messages at most",
    )
    for name, default, what in (
        ("publishers", 1, "connections that publish"),
        ("consumers", 1, "connections that receive; 0 only publishes"),
        ("size", 64, "bytes of a payload"),
        ("window", 1000, "messages of a publisher that wait for their acknowledgement"),
    ):
        kind = _not_negative if name == "consumers" else _positive
        bench.add_argument(
            f"--{name}",
            type=kind,
            default=default,
            metavar="N",
            help=f"{what} (default: {default})",
        )
    bench.add_argument(
        "--rate", type=_positive, metavar="N", help="messages a second of all (default: all it can)"
    )
    _add_seconds(bench)
    bench.add_argument(
        "--warm-up", type=_seconds, metavar="S", help="before that, not in the figures"
    )
    bench.add_argument("--count", type=_positive, metavar="N", help="messages, instead of a time")
    bench.add_argument("--name", type=_not_empty, help="of the queue, or where topics begin")
    _add_json(bench, "one JSON object per protocol")


def _add_chaos(chaos: argparse.ArgumentParser) -> None:
    chaos.add_argument("experiments", metavar="EXPERIMENT", nargs="*")
    chaos.add_argument(
        "--protocol",
        dest="protocols",
        action="append",
        default=[],
        metavar="NAME",
        help="mqtt, amqp or trivium; may be given again (default: all)",
    )
    for name, default, what in (
        ("rounds", 3, "disturbances of each experiment"),
        ("rate", 500, "messages a second of each publisher"),
    ):
        chaos.add_argument(
            f"--{name}",
            type=_positive,
            default=default,
            metavar="N",
            help=f"{what} (default: {default})",
        )
    chaos.add_argument(
        "--patience",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="in which the broker must serve again, and what is under way come (default: 30)",
    )
    chaos.add_argument("--tls", action="store_true", help="clients come by TLS")
    chaos.add_argument("--seed", type=int, metavar="N", help="repeats what was drawn by chance")
    chaos.add_argument(
        "--broker", type=_not_empty, metavar="COMMAND", help="instead of this `trivium serve`"
    )
    _add_json(chaos, "one JSON object per experiment")


def _add_seconds(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S", help="of publishing (default: 10)"
    )


def _add_way(command: argparse.ArgumentParser) -> None:
    """How messages come and go, for both directions."""
    _add_json(command, "one JSON object: of what was published, or per message that comes")
    command.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="default: 1")
    command.add_argument("--exchange", default="amq.topic", help="amqp, trivium: default amq.topic")


def _add_directory(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", type=_not_empty, metavar="DIR")
    _add_json(command, "one JSON object")
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--key-file",
        type=_not_empty,
        metavar="FILE",
        help="keys of an encrypted directory (else as the environment configures the broker)",
    )
    source.add_argument(
        "--key-env", type=_not_empty, metavar="NAME", help="variable that holds the keys"
    )


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="BROKER")
    command.add_argument("file", type=_not_empty, metavar="FILE")
    command.add_argument(
        "--output",
        type=_not_empty,
        metavar="NEW",
        help="mosquitto: a new file, instead of standard output",
    )
    command.add_argument(
        "--vhost", metavar="NAME", help="rabbitmq: into this virtual host, whatever theirs was"
    )
    _add_json(command, "one JSON object")
    add_control(command)


def _add_definitions(command: argparse.ArgumentParser) -> None:
    verbs = command.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary, default in (
        ("export", "write them to a file", "standard output"),
        ("import", "declare and grant what a file says", "standard input"),
    ):
        made = verbs.add_parser(verb, help=summary, description=summary.capitalize() + ".")
        made.add_argument(
            "file", type=_not_empty, metavar="FILE", nargs="?", default="-", help=f"or {default}"
        )
        made.add_argument("--vhost", metavar="NAME", help="those of one virtual host")
        if verb == "import":
            made.add_argument(
                "--skip", action="store_true", help="go on behind what cannot be, and name it"
            )
        _add_json(made, "JSON on one line")
        add_control(made)


def _add_json(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--json", action="store_true", help=what)


def _add_tls(tls: argparse.ArgumentParser) -> None:
    actions = tls.add_subparsers(dest="action", metavar="ACTION", required=True)
    about = "an authority, a server and a client"
    make = actions.add_parser("self-signed", help=about, description=f"Make {about}.")
    make.add_argument("directory", type=_not_empty, metavar="DIR")
    _add_json(make, "one JSON object")
    make.add_argument(
        "--host",
        dest="hosts",
        action="append",
        type=_not_empty,
        metavar="HOST",
        help="of the server, beside localhost, 127.0.0.1 and ::1; may be given again",
    )


def _address(text: str) -> str:
    from trivium.config import Listen
    from trivium.errors import ConfigError

    try:
        Listen.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it must not be empty")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _not_negative(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _seconds(text: str) -> float:
    """From a tenth of a second to a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0.1 to 86400")
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Run the command with `arguments` (those of the process by default); its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    parser = make_parser(arguments[:1])
    options = parser.parse_args(arguments)
    if options.version:
        print(f"trivium {__version__}")
        return EXIT_OK
    if options.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    command = options.command
    try:
        module = import_module(f"trivium.cli.{_MODULES[command]}")
        code: int = module.run(options)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        package, extra = _NEEDS.get(command, ("", ""))
        if (error.name or "").partition(".")[0] != package:
            raise
        need = f"it needs the package {package}: pip install 'trivium[{extra}]'"
        print(f"trivium {command}: {need}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        # Whoever reads has seen enough. What is left has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    return code
