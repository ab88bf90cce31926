"""The migration that the page about schemas shows, in a real Django project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import ROOT, files_in
from tests.orm.databases import KINDS, Database, Kind

PAGE = ROOT / "docs/how-to/deploy-the-schema.md"
MIGRATION = "shop/migrations/0002_postroom.py"
INITIAL = """\
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [migrations.CreateModel("Order", [("id", models.BigAutoField(primary_key=True, serialize=False))])]
"""
MODELS = """\
from django.db import models


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
"""


class Project:
    """A Django project with one app, on one database."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        self.database = database
        self._write(
            "settings.py", f"INSTALLED_APPS = ['shop']\nUSE_TZ = True\nDATABASES = {{'default': {self._address()}}}\n"
        )
        self._write("shop/__init__.py", "")
        self._write("shop/models.py", MODELS)
        self._write("shop/migrations/__init__.py", "")
        self._write("shop/migrations/0001_initial.py", INITIAL)
        migration = files_in(PAGE)[MIGRATION]
        if database.kind.dialect == "sqlite":  # as the page says
            migration = migration.replace("DROP SEQUENCE postroom_ids", "DROP TABLE postroom_sequence")
            migration = migration.replace("DROP TABLE postroom_nudge;\n", "")
        self._write(MIGRATION, migration)
        script = self._run("-c", "from postroom.cli import main; main()", "schema", "--sql", "--url", database.url)
        self._write("shop/migrations/postroom_1.sql", script.stdout)

    def _address(self) -> dict[str, str | int | None]:
        if self.database.kind.dialect == "sqlite":
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.database.url.removeprefix("sqlite:///")}
        parts = urlsplit(self.database.url)
        where = {"HOST": parts.hostname, "PORT": parts.port or 5432, "USER": parts.username, "PASSWORD": parts.password}
        return {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], **where}

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, "utf-8")

    def _run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=check,
        )

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._run("-m", "django", *arguments, check=check)

    def tables(self) -> set[str]:
        """Without what Django keeps for itself."""
        contents = self.database.contents()
        names = contents if self.database.kind.dialect == "sqlite" else [row[1] for row in contents["relations"]]
        return {name for name in names if not name.startswith("django_")}


@pytest.fixture(params=[kind for kind in KINDS if not kind.names], ids=str)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    kind: Kind = request.param
    (tmp_path / "data").mkdir()
    return Project(tmp_path / "project", kind.create(tmp_path / "data"))


@pytest.mark.req("C-52")
def test_django_makes_the_tables_and_takes_them_back(project: Project) -> None:
    project.manage("migrate")
    assert project.manage("makemigrations", "--check", "--dry-run").stdout == "No changes detected\n"
    with project.database.room() as room:
        assert room.migrate() == []
        assert room.outbox().enqueue("topic", "text").is_new
    project.manage("migrate", "shop", "0001")
    assert project.tables() & {"shop_order", "postroom_message"} == {"shop_order"}
    assert not [name for name in project.tables() if name.startswith("postroom_")]


def test_a_migration_that_fails_leaves_nothing_of_ours(project: Project) -> None:
    with (project.folder / "shop/migrations/postroom_1.sql").open("a") as script:
        script.write("SELECT no_such_function();\n")
    failed = project.manage("migrate", check=False)
    assert failed.returncode == 1
    assert "no_such_function" in failed.stderr
    assert not [name for name in project.tables() if name.startswith("postroom_")]
