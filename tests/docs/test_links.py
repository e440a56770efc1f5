from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_links_inside_the_repository_resolve():
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+://|mailto:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = page if not path else (page.parent / path)
            if linked.parent.name == "tutorial" and linked.suffix == ".rst":  # written from this program by the site
                linked = (ROOT / "docs/tutorial" / linked.name).with_suffix(".py")
            assert linked.exists(), f"{page.relative_to(ROOT)} links to {target}"
            if anchor and linked.suffix == ".md":
                titles = re.findall(r"^#+ (.+)$", linked.read_text(), flags=re.M)
                slugs = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
                assert anchor in slugs, f"{page.relative_to(ROOT)} links to {target}"


def test_every_theory_page_is_listed_in_the_index():
    index = (ROOT / "docs/theory/index.md").read_text()
    for page in (ROOT / "docs/theory").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_pages_name_only_functions_and_files_that_exist():
    defined: set[str] = set()
    for source in (ROOT / "src").rglob("*.py"):
        for function, constant in re.findall(r"^ *(?:def|class) (\w+)|^(\w+) *[:=]", source.read_text(), flags=re.M):
            defined |= {function, constant}
    for page in (ROOT / "docs/theory").glob("*.md"):
        text = page.read_text()
        for name in re.findall(r"`(?:tests|src|benchmarks|examples)/[^`\s]+`", text):
            assert (ROOT / name.strip("`").split("::")[0]).exists(), f"{page.name} names {name}"
        for path in re.findall(r"`(muonlab(?:\.\w+)+)`", text):
            module = (ROOT / "src" / path.replace(".", "/")).with_suffix(".py")
            known = path.rpartition(".")[2] in defined or module.is_file() or module.with_suffix("").is_dir()
            assert known, f"{page.name} names {path}"
