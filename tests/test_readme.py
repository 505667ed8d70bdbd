"""What the README tells a reader to type works as written."""

import re
from pathlib import Path

from paribus.plan.plan import plan
from paribus.project import find

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_experiment_in_the_readme_plans(tmp_path):
    blocks = re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", README, re.DOTALL)
    assert [name for name, _ in blocks] == ["experiments/depth.yaml", "ablations/shape.yaml"]
    (tmp_path / "paribus.toml").write_text("")
    for name, text in blocks:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = plan(find(tmp_path), "depth", "tiny")
    assert [arm.label for arm in found.arms] == ["wide", "deep"]
    assert found.arms[1].run.encoder.layers == 4


def test_every_file_the_readme_links_to_exists():
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert "docs/store.md" in targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert commands == ["demo", "test"]
    for command in commands:
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command
