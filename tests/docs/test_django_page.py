"""The project on the page about Django works as the page describes it, on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.docs.pages import ROOT, files_in
from tests.docs.test_snippets import ENVIRONMENT
from tests.postgres import create_database

PAGE = ROOT / "docs/how-to/use-django.md"

PROJECT = {
    "settings.py": """\
import os

SECRET_KEY = "test"
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", **{database!r}}}}}
""",
    "urls.py": """\
from django.urls import path

from shop import views

urlpatterns = [path("orders", views.place_order), path("webhooks/bank", views.bank_webhook)]
""",
    "shop/__init__.py": "",
    "shop/migrations/__init__.py": "",
    "shop/models.py": """\
from django.db import models


class Order(models.Model):
    item = models.TextField()
    paid = models.BooleanField(default=False)
""",
}


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    place = conninfo_to_dict(create_database())
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database = {name: place[key] for name, key in names.items() if key in place}
    for name, text in {**PROJECT, **files_in(PAGE)}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.format(database=database) if name == "settings.py" else text, "utf-8")
    manage(tmp_path, "makemigrations", "shop", "--name", "initial", hide="0002_postroom.py")
    output = manage(tmp_path, "test", "--no-color")
    assert "Ran 2 tests" in output
    assert "OK" in output


def manage(project: Path, *arguments: str, hide: str | None = None) -> str:
    """Run a command of Django, if need be without one of the migrations."""
    hidden = project / "shop/migrations" / (hide or "none")
    aside = hidden.rename(project / "aside") if hide else None
    done = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=project,
        env=ENVIRONMENT | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if aside is not None:
        aside.rename(hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
