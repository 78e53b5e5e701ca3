"""What `deploy/` has is right by its own tools, and its configurations are those of the broker."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import serve
from trivium.cli.configuration import load
from trivium.config import Config
from trivium.security.passwords import hash_password

REPOSITORY = Path(__file__).parents[1]
DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "trivium.yaml").read_text()))
UNIT = DEPLOY / "systemd" / "trivium.service"
PROTOCOLS = frozenset(("mqtt", "amqp", "native", "http"))
TOOLS = Path(sys.executable).parent


def check(*command: str | Path) -> str:
    """Run a tool that finds nothing to complain of; what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def configured(file: Path | None, environment: dict[str, str]) -> Config:
    return load(file, environment, {}, PROTOCOLS, {})


def kubernetes(kind: str) -> Any:
    (found,) = (item for item in KUBERNETES if item["kind"] == kind)
    return found


def test_hadolint_accepts_the_dockerfile() -> None:
    assert check(TOOLS / "hadolint", DEPLOY / "docker" / "Dockerfile") == ""


def test_compose_file_follows_the_specification() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    check(TOOLS / "check-jsonschema", *schema, DEPLOY / "docker" / "compose.yaml")


def test_manifests_follow_the_schemas_of_kubernetes() -> None:
    said = check(
        TOOLS / "kubernetes-validate", "--strict", "-k", "1.33", DEPLOY / "kubernetes/trivium.yaml"
    )
    assert said.count("passed") == len(KUBERNETES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")
def test_promtool_accepts_the_configuration_of_prometheus() -> None:
    check("promtool", "check", "config", "--syntax-only", DEPLOY / "docker" / "prometheus.yml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_unit_and_calls_it_well_confined(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/trivium/bin/trivium", "/bin/true"))
    assert check("systemd-analyze", "verify", unit) == ""
    said = check("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    found = re.search(r"exposure level for trivium.service: ([0-9.]+)", said)
    assert found is not None
    assert float(found[1]) < 2


def test_systemd_and_the_broker_mean_the_same_directories() -> None:
    unit = UNIT.read_text()
    data = configured(DEPLOY / "systemd" / "trivium.toml", {}).storage.data
    assert data == Path("/var/lib") / re.findall("^StateDirectory=(.*)$", unit, re.MULTILINE)[0]


def test_image_listens_to_all_and_keeps_data_in_its_volume() -> None:
    config = configured(DEPLOY / "docker" / "trivium.toml", {})
    ports = [config.listen[name].port for name in ("mqtt", "amqp", "native", "http")]
    (exposed,) = re.findall("^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    assert exposed.split() == [str(port) for port in ports]
    assert {listen.host for listen in config.listen.values()} == {"0.0.0.0"}
    assert f"VOLUME {config.storage.data}\n" in DOCKERFILE


def test_image_is_built_of_files_that_suffice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = DOCKERFILE.split("\nFROM ")[1]
    for names in re.findall("^COPY (.*)$", stage, re.MULTILINE):
        *sources, target = names.split()
        for source in sources:
            place = tmp_path / target / (source if target == "./" else "")
            if (REPOSITORY / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(REPOSITORY / source, place, ignore=ignored)
            else:
                shutil.copy(REPOSITORY / source, place)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    wheels = tmp_path / "wheels"
    places = ["--wheel-dir", str(wheels), str(tmp_path)]
    monkeypatch.setenv("TRIVIUM_PURE", "1")
    check(sys.executable, "-m", "pip", "wheel", *options, *places)
    assert [file.name.endswith("-py3-none-any.whl") for file in wheels.iterdir()] == [True]


def test_image_is_healthy_while_the_broker_serves() -> None:
    (words,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    _, *arguments = json.loads(words)
    off = ["--mqtt", "off", "--amqp", "off", "--native", "off", "--memory"]
    with serve(*off, "--http", "0") as (_, line):
        port = line.split("http=127.0.0.1:")[1].split()[0]
        asked = [word.replace("15672", port) for word in arguments]
        assert asked != arguments
        check(sys.executable, *asked)
    done = subprocess.run([sys.executable, *asked], capture_output=True, timeout=60)
    assert done.returncode != 0


def test_services_are_called_as_the_image_and_the_unit_have_it() -> None:
    entry = json.loads(DOCKERFILE.split("\nENTRYPOINT ")[1].split("\n")[0])
    default = json.loads(DOCKERFILE.split("\nCMD ")[1].split("\n")[0])
    (container,) = kubernetes("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["args"] == default
    (start,) = re.findall("^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    program, *arguments = shlex.split(start)
    assert ([Path(program).name], arguments) == (entry, default)


def test_compose_lets_nobody_in_but_its_users() -> None:
    environment = dict(COMPOSE["services"]["trivium"]["environment"])
    for user in ("admin", "prometheus"):
        environment[f"TRIVIUM_USERS__{user}__PASSWORD"] = "a password"
    config = configured(DEPLOY / "docker" / "trivium.toml", environment)
    assert (config.auth.guest, config.auth.anonymous) == (False, "never")
    assert set(config.users) == {"admin", "prometheus"}
    assert config.users["admin"].tags == ("administrator",)
    assert config.users["prometheus"].tags == ("monitoring",)


def test_kubernetes_lets_nobody_in_but_the_users_of_its_secret(tmp_path: Path) -> None:
    file = tmp_path / "trivium.toml"
    file.write_text(kubernetes("ConfigMap")["data"]["trivium.toml"])
    names = (DEPLOY / "kubernetes" / "users.env").read_text()
    variables = re.findall("^(.*)=$", names, re.MULTILINE)
    config = configured(file, dict.fromkeys(variables, hash_password(b"a password")))
    assert (config.auth.guest, config.auth.anonymous) == (False, "never")
    assert set(config.users) == {"admin", "prometheus"}


def test_kubernetes_serves_the_ports_and_the_volume_of_the_configuration() -> None:
    config = tomllib.loads(kubernetes("ConfigMap")["data"]["trivium.toml"])
    (container,) = kubernetes("StatefulSet")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {name: int(at.rpartition(":")[2]) for name, at in config["listen"].items()}
    served = {port["name"]: port["port"] for port in kubernetes("Service")["spec"]["ports"]}
    assert served == ports
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["data"] == config["storage"]["data"]
