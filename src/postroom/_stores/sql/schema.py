"""The schema: its version, its check and its migrations, as programs."""

from __future__ import annotations

from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.statements import Script, SqlProgram, Statement
from postroom.errors import SchemaMissing, SchemaOutdated, SchemaTooNew

_VERSIONS = "CREATE TABLE postroom_schema (version INTEGER NOT NULL PRIMARY KEY, name VARCHAR(100) NOT NULL)"
_APPLIED = "INSERT INTO postroom_schema (version, name) VALUES ({version}, '{name}')"

BREAKING = "breaking_"
"""The prefix in the name of a migration after which the version before cannot use the tables. All other migrations only
add to the tables, so workers of the version before go on, and can be started, while an upgrade is rolled out."""


class SchemaPrograms:
    """The verbs of Migrator, as programs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.newest = max(migration.version for migration in engine.migrations)

    @property
    def _command(self) -> str:
        """The command that creates or upgrades these tables."""
        schema = f" --schema {self.engine.schema}" if self.engine.schema else ""
        prefix = f" --prefix {self.engine.prefix}" if self.engine.prefix != DEFAULT_PREFIX else ""
        return f"postroom migrate{schema}{prefix}"

    def version(self) -> SqlProgram[int]:
        """Returns the version of the tables; 0 if there are none."""
        if not (yield Statement("has_schema")):
            return 0
        [(version,)] = yield Statement("schema_version")
        return int(version)

    def check(self) -> SqlProgram[None]:
        """Raises an error that says what to do, unless this version of the package can use the tables."""
        version = yield from self.version()
        if version == 0:
            raise SchemaMissing(
                f"this database has no {self.engine.tables}: call migrate() on the room once, "
                f"or run `{self._command}`, or open it with deploy_schema=True"
            )
        if version < self.newest:
            raise SchemaOutdated(
                f"the tables are at version {version}, this Postroom needs {self.newest}: "
                f"call migrate() on the room or run `{self._command}`"
            )
        yield from self._check_later(version)

    def _check_later(self, version: int) -> SqlProgram[None]:
        """Raises if the tables are of a later version of the package, and this one cannot use them."""
        if version > self.newest:
            later = yield Statement("later_versions", {"version": self.newest})
            if any(name.startswith(BREAKING) for (name,) in later):
                raise SchemaTooNew(
                    f"the tables are at version {version}, this Postroom knows only {self.newest}: upgrade the package"
                )

    def migrate(self) -> SqlProgram[list[int]]:
        """Applies the missing migrations; returns their versions. A second migration waits for the lock of the
        first."""
        yield Statement("lock_schema")
        version = yield from self.version()
        yield from self._check_later(version)
        for text in self.steps(version):
            yield Script(text)
        return [migration.version for migration in self.engine.migrations if migration.version > version]

    def script(self) -> str:
        """Returns all migrations as SQL text."""
        return "\n".join(f"{text.rstrip().rstrip(';')};\n" for text in self.steps())

    def steps(self, since: int = 0, to: int | None = None) -> list[str]:
        """Returns the statements that upgrade the tables from one version to another; by default from none to the
        newest."""
        steps = [] if since else [*self.engine.preamble, self.engine.rename(_VERSIONS)]
        for migration in self.engine.migrations:
            if since < migration.version <= (to or self.newest):
                steps += self.engine.split(migration.text)
                applied = _APPLIED.format(version=migration.version, name=migration.name)
                steps.append(self.engine.rename(applied))
        return steps
