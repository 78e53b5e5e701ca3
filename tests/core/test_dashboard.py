"""The files of the dashboard as they are served: whole, kept by browsers, and able to do little."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import pytest

from tests.support.rest import Site, serve
from trivium.management import dashboard
from trivium.management.dashboard import FOLDER, files

SOURCES = sorted(FOLDER.rglob("*.js"))
IMPORT = re.compile(r'^(?:import|export) .*?from "([^"]+)";$|^import "([^"]+)";$', re.MULTILINE)
#: What makes markup or a program of a text.
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    r"|setHTML|\beval\b|new Function|srcdoc=|javascript:"
)


async def get(site: Site, path: str, **headers: str) -> tuple[int, aiohttp.ClientResponse, bytes]:
    url = f"http://{site.broker.listeners['http']}{path}"
    async with site.client.get(url, headers=headers) as answer:
        return answer.status, answer, await answer.read()


async def test_the_first_page_leads_to_all_that_it_needs(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        status, answer, body = await get(site, "/")
        assert (status, answer.content_type) == (200, "text/html")
        assert answer.headers["Cache-Control"] == "no-cache"
        again, _, nothing = await get(site, "/", **{"If-None-Match": answer.headers["ETag"]})
        assert (again, nothing) == (304, b"")
        assert (await get(site, "/", **{"If-None-Match": '"x"'}))[0] == 200
        seen = {"/"}
        wanted = re.findall(r'(?:src|href)="(dashboard/[^"]+)"', body.decode())
        left = ["/" + each for each in wanted]
        assert len(left) == 3
        while left:
            path = left.pop()
            if path in seen:
                continue
            seen.add(path)
            status, answer, body = await get(site, path)
            assert status == 200, path
            assert "immutable" in answer.headers["Cache-Control"]
            if path.endswith(".js"):
                assert answer.content_type == "text/javascript"
                for found in IMPORT.finditer(body.decode()):
                    left.append(urljoin(path, found[1] or found[2]))
        # Nothing is in the wheel that no page needs.
        assert seen == set(files())


async def test_every_file_says_what_pages_may_do(tmp_path: Path) -> None:
    async with serve(tmp_path) as site:
        for path in files():
            _, answer, _ = await get(site, path)
            headers = answer.headers
            policy = dict(
                part.strip().partition(" ")[::2]
                for part in headers["Content-Security-Policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["base-uri"] == policy["form-action"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert not any("unsafe" in each or "*" in each for each in policy.values())
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert "Set-Cookie" not in headers


@pytest.mark.parametrize(
    "path", ["/dashboard/0000000000000000/app.js", "/dashboard/../__init__.py", "/index.html"]
)
async def test_there_is_nothing_else(tmp_path: Path, path: str) -> None:
    async with serve(tmp_path) as site:
        assert (await get(site, path))[0] == 404


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_no_script_makes_markup_of_what_it_shows(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    code = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    assert not MARKUP.search(code), MARKUP.search(code)
    # Nor is anything fetched from elsewhere.
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", code)


def test_no_page_has_a_script_or_style_in_it() -> None:
    for file in FOLDER.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", text)


def test_the_files_change_their_paths_when_one_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files()
    folder = tmp_path / "files"
    shutil.copytree(FOLDER, folder)
    with (folder / "style.css").open("a") as file:
        file.write("/**/")
    monkeypatch.setattr(dashboard, "FOLDER", folder)
    files.cache_clear()
    try:
        assert set(before) & set(files()) == {"/"}
        assert before["/"].tag != files()["/"].tag
    finally:
        files.cache_clear()
